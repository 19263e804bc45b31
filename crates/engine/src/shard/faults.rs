//! What a peer does that it must not. An error of this kind closes the lane that it came by, and
//! nothing else.

use piped_report::tally::LaneLoss;

/// The fault of a peer, as the log and `LaneDown` say it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum PeerFault {
    #[error("a frame of another epoch")]
    OtherEpoch,

    // Greetings.
    #[error("the first frame was not Hello")]
    NoHello,
    #[error("the node's name is damaged")]
    DamagedName,
    #[error("the node's name is not printable ASCII")]
    UnprintableName,
    #[error("{0}")]
    NotItsName(&'static str),
    #[error("as many peers are connected as there may be")]
    NoPlace,
    #[error("an epoch that is over")]
    OldEpoch,
    #[error(
        "a lane by way of a second address, and no latency lane of that node is on this shard; \
         the node is to be known by its key, or to come from one address on both links"
    )]
    SecondAlone,
    #[error("the peer refused the lane")]
    Refused,
    #[error(
        "behind the second address is another daemon than behind the first, or it has restarted \
         meanwhile (peers.NAME.second_address)"
    )]
    OtherDaemon,
    #[error(
        "it answers that payloads have no checksum or tag, which this node did not offer \
         (peers.NAME.checksum); its daemon is faulty"
    )]
    NoSums,
    #[error("a frame before HelloAck")]
    FrameBeforeHelloAck,

    // Requests.
    #[error("a request before HelloAck")]
    RequestBeforeHelloAck,
    #[error("more requests outstanding than it was allowed")]
    TooManyRequests,
    #[error("the same request number twice")]
    RequestTwice,
    #[error("the sizes of a write's fragments are none")]
    NoSizes,
    #[error("the sizes of a write's fragments are damaged")]
    DamagedSizes,
    #[error("a table of pieces is damaged, or of a request that is under way")]
    DamagedTable,
    #[error("a call is damaged")]
    DamagedCall,
    #[error("a payload with a frame that has none")]
    StrayPayload,
    #[error("more write data than it had credit for")]
    Overdrawn,
    #[error("write data out of order or outside what was announced")]
    WriteOutOfOrder,
    #[error("a message on the wrong lane, or more under way on a handle than there may be")]
    StrayMessage,
    #[error("an open or close on the bulk lane")]
    OpenOnBulk,
    #[error("something else than a read on a lane by way of a second address")]
    NotOnSecond,
    #[error("more opens under way than there may be")]
    TooManyOpens,
    #[error("the name to open is damaged")]
    DamagedOpen,
    #[error("the name to open is cut")]
    CutOpen,
    #[error("the name to open is not UTF-8")]
    OpenNotText,
    #[error("it does not read its answers")]
    UnreadAnswers,
    #[error("an answer on a lane that carries requests")]
    AnswerAmongRequests,

    // Answers.
    #[error("a request on a lane that carries answers")]
    RequestAmongAnswers,
    #[error("an answer to a request that was not asked, or is over")]
    UnaskedAnswer,
    #[error("an answer to an open that was not sent")]
    UnaskedOpened,
    #[error("an answer to a message that is none")]
    AnswerToNoMessage,
    #[error("an answer to an update that is none")]
    AnswerToNoUpdate,
    #[error("an answer to an update that was not sent")]
    UnaskedUpdated,
    #[error("an end for a request that was not the peer's")]
    ForeignEnd,
    #[error("an end of what is answered otherwise")]
    EndOfOnce,
    #[error("an end that counts more bytes than were sent")]
    EndBeyondWrite,
    #[error("an end that says Ok to a write of which it counts a part")]
    EndShortOfWrite,
    #[error("an end of a write that has ended")]
    EndTwice,
    #[error("an end of a message that is none")]
    EndOfNoMessage,
    #[error("the peer sent a payload with a frame that has none")]
    StrayAnswerPayload,
    #[error("the peer answered a request that was not its")]
    ForeignData,
    #[error("the peer sent data for a request that reads none")]
    DataForNoRead,
    #[error("the peer sent data outside what was asked, or twice")]
    DataOutside,
    #[error("the peer cut a read where no piece may end")]
    DataCutWrong,
}

impl PeerFault {
    /// What the lane is counted as lost for.
    pub(super) const fn loss(self) -> LaneLoss {
        match self {
            Self::OtherEpoch => LaneLoss::Epoch,
            _ => LaneLoss::Protocol,
        }
    }
}
