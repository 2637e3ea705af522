"""The leader role of a partition appends, and moves the high watermark and the ISR."""
