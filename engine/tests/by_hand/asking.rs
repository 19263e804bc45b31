//! What we ask of a peer.
