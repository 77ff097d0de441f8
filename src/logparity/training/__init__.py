"""The training loop: the place where all parts meet. Import what you need from its modules."""
