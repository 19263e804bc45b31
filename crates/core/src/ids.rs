//! Names of things, each its own type so that a peer id cannot be used as a session id.

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
        pub struct $name(pub u32);
    };
}

id!(
    /// A client's connection, unique within the daemon's life.
    SessionId
);
id!(
    /// A queue of a session: one submission and one completion ring.
    QueueId
);
id!(
    /// Something a client opened; unique within its session.
    HandleId
);
id!(
    /// Another daemon this node may talk to, by its place in the configuration.
    PeerId
);
id!(
    /// A piece of registered memory known to the driver: a client's segment or staging.
    SegmentId
);
id!(
    /// An open file known to the driver.
    FileId
);
id!(
    /// A connected stream socket known to the driver.
    SocketId
);
id!(
    /// A block device (or what stands for one), the resource of a disk stage.
    DeviceId
);
id!(
    /// A memory region that a client exported.
    RegionId
);

id!(
    /// A channel that a client receives on.
    ChannelId
);

impl RegionId {
    /// The region of zeros that every node has for calibrations; all of it fits one frame. No
    /// region of a client has this number.
    pub const ECHO: Self = Self(u32::MAX);

    /// The buffer of a receive while its message is written there. Nobody exports or revokes a
    /// region of this number.
    pub const MESSAGE: Self = Self(u32::MAX - 1);
}
