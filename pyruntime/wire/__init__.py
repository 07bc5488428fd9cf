"""Between processes: messages of peers that know one secret, and a thread for the loop that carries them."""
