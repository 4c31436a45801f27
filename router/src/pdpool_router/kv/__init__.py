"""What is known of prefixes: keys of prompts, and which endpoint holds how much of each. Pure."""
