//! Memory that a client lends to its session, and takes back.

use std::sync::Arc;

use piped_config::Bytes;
use piped_control::fault::OpenFault;
use piped_core::status::Status;
use piped_ring::handshake::Reply;
use piped_ring::{LentKind, SegmentFault, lent};

use super::{Client, Done, Held, Own};
use crate::arenas::Maker;
use crate::closing::HeldFile;
use crate::shard::message::Message;

/// Maps a client's memory, and adds it to its segments.
pub(super) async fn take(client: &mut Client, file: HeldFile, bytes: u64, kind: LentKind) -> Done {
    let refused = |text| OpenFault::new(Status::WouldBlock, text);
    let (used, most) = (client.bytes_of(true), client.control.limiter.limits().client.lent.bytes());
    if bytes > most.saturating_sub(used) {
        return Err(refused(format!(
            "{} more than the {} that the session lends is beyond limits.client.lent = {}; \
             give some back, or raise the limit",
            Bytes(bytes),
            Bytes(used),
            Bytes(most)
        )));
    }
    client.check_segments()?;
    let share = client.control.reserve(Maker::Client, client.who.uid, bytes).map_err(refused)?;
    let memory = client
        .patiently(move |turns| {
            let mut memory = lent::map(&file, bytes, kind).map_err(|it| fault(&it))?;
            memory.keep(share);
            lent::settle(&memory, || turns.next());
            Ok(Arc::new(memory))
        })
        .await?;
    let segment = client.add_segment(Own { memory, lent: true }).await?;
    Ok((Reply::Lent { segment }, Vec::new()))
}

/// Removes lent memory from the session. It is unmapped after its last use.
pub(super) async fn end(client: &mut Client, segment: u32) -> Done {
    let place = client.segments.get_mut(segment as usize);
    let Some(own) = place.filter(|own| own.as_ref().is_some_and(|own| own.lent)) else {
        let text = format!("the segment {segment} is not lent");
        return Err(OpenFault::new(Status::BadBuffer, text));
    };
    let is_in_it = |held: &Held| matches!(held, Held::Region(_, at) if *at == segment);
    if client.handles.values().any(is_in_it) {
        let text = format!("a region lies in the segment {segment}; close it first");
        return Err(OpenFault::new(Status::Invalid, text));
    }
    let memory = own.take().map(|own| own.memory);
    let session = client.id;
    let taken = |answer| Message::TakeBack { session, number: segment, answer };
    let answered = client.shards.ask_each(taken).await;
    // The last owner gives it back: here, or the shard that used it longer.
    drop(client.control.give_back(memory, None));
    client.note();
    answered.map(|()| (Reply::Done, Vec::new()))
}

fn fault(fault: &SegmentFault) -> OpenFault {
    let status = match fault {
        SegmentFault::System(_) => Status::WouldBlock,
        SegmentFault::Unguarded(_) => Status::Unsupported,
        SegmentFault::ReadOnly => Status::Denied,
        _ => Status::BadBuffer,
    };
    OpenFault::new(status, fault.to_string())
}
