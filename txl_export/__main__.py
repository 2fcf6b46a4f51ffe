"""`python -m txl_export`, the same as the command `txl-export`."""

from __future__ import annotations

from txl_export.cli import main

if __name__ == "__main__":
    main(prog_name="txl-export")
