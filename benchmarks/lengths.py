"""The lengths that are compared: one bundle whose memory is written in place is made for the largest of them."""

MEM_LENS, SEGMENT_LENS = (128, 640, 1600, 3800), (1, 16, 64, 128)
