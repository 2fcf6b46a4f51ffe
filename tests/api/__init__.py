"""Names and parameters of packages that are not there when tests run, or cannot be called."""
