"""Where tokens sit: the next-token alignment and the batch layouts."""
