"""What the router knows now: endpoints and their load. One writer each; readers get snapshots."""
