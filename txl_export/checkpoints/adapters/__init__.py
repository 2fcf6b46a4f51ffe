"""LoRA adapters in PEFT's format, merged into a checkpoint's weights.

`applying` is where it starts; here is only what remains known of an adapter that was merged.
"""

from txl_export.checkpoints.adapters._record import Adapter, check_recorded, described

__all__ = ["Adapter", "check_recorded", "described"]
