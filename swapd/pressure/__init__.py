"""What is normal on a lent device, and whether its owner needs it now (R1-R130)."""
