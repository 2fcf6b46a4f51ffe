"""What backends on a GPU share: checked CUDA calls, memory that stays on the device, calls that are captured."""
