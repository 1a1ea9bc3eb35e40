"""What the operator's tools and the coordinator say to each other over the ops socket, and its frames."""
