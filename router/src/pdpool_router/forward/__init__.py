"""The two legs: connections to engines, the handoff between the legs, and the relay of the answer."""
