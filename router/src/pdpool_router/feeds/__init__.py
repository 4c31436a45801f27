"""What comes in from outside besides requests: endpoints, and whether they live."""
