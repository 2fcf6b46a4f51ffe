"""Pictures of benchmarks and verifications, and the report of a bundle as one HTML file."""
