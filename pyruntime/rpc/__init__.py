"""The one transport between processes: connections of peers that know one secret, and services on them."""
