"""What is remembered between rows: prefixes and pictures, in memory and on SSD."""
