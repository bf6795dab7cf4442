"""Workers whose environments are clients: one process, which a server runs in, acts for all of them."""
