//! Borders on their way: what comes from the neighbours before, what goes to those after.

use std::collections::VecDeque;
use std::time::Duration;

use piped_core::access::Access;
use piped_core::status::Status;

use super::costs::{LinkCosts, LinkSample};
use super::link::{Layout, Neighbour, SLOTS, STAMP_BYTES, Stamp, region};
use super::{TileError, TilePipeline};
use crate::buffer::Buffer;
use crate::client::Client;
use crate::clock;
use crate::error::{Cause, RequestError};
use crate::handle::RegionExport;
use crate::payload::Payload;
use crate::pending::{Pending, Waited};
use crate::queue::Queue;
use crate::request::{Done, Request};

/// A neighbour that is waited for is asked this often whether it is there.
const PROBE: Duration = Duration::from_millis(50);
/// No answer in that time says nothing of it: its node may be busy.
const PROBE_LIMIT: Duration = Duration::from_secs(2);

/// A wait is over when its notification comes or its region goes; one that a daemon ends before is
/// asked for again. How long we are patient begins when there is nothing else to do, and is counted
/// here.
const WAIT_DEADLINE: Duration = Duration::from_secs(3600);

/// Links are measured with borders of one row, and of as many rows as fit in so many bytes.
const MEASURED_BYTES: u64 = 256 << 10;
const MEASUREMENTS: usize = 7;

/// The process's own region.
#[derive(Debug)]
pub(super) struct Own {
    layout: Layout,
    /// The exported region; `None` once it was withdrawn.
    export: Option<RegionExport>,
}

impl Own {
    pub(super) fn export(client: &Client, name: &str, layout: Layout) -> Result<Self, TileError> {
        // The layout has checked that its parts fit.
        let mut buffer = client.allocate(layout.bytes() as usize)?;
        let head = layout.head();
        buffer.as_mut_slice()[..head.len()].copy_from_slice(&head);
        let name = region(name, layout.at);
        let export = client.export_region(&name, buffer, Access::READ_WRITE)?;
        Ok(Self { layout, export: Some(export) })
    }

    pub(super) fn layout(&self) -> &Layout {
        &self.layout
    }

    fn export_ref(&self) -> Result<&RegionExport, TileError> {
        self.export.as_ref().ok_or(TileError::Over)
    }

    /// Waits for so many notifications, in the background.
    pub(super) fn wait(&self, id: u32, count: u64) -> Result<Request<()>, TileError> {
        Ok(Request::wait(self.export_ref()?.handle(), id, count).deadline(WAIT_DEADLINE))
    }

    pub(super) fn withdraw(&mut self) {
        self.export = None;
    }
}

/// How to wait for a neighbour.
pub(super) struct Waiting<'a> {
    pub(super) client: &'a Client,
    /// Queue of the requests that are waited for.
    pub(super) queue: &'a mut Queue,
    /// The queue for requests that find the neighbour; `None` for the queue above.
    pub(super) asking: Option<&'a mut Queue>,
    pub(super) patience_ns: u64,
    /// Nanoseconds of waiting so far.
    pub(super) blocked_ns: &'a mut u64,
}

impl Waiting<'_> {
    /// The end of a request that the neighbour has to do something for.
    ///
    /// A wait on the own region cannot know that the neighbour that would end it is gone. So the
    /// neighbour's region is asked now and then: it goes with its process.
    pub(super) fn end<B: Payload>(
        &mut self,
        pending: Pending<B>,
        neighbour: &Neighbour,
    ) -> Result<Result<Done<B>, RequestError>, TileError> {
        let mut pending = match pending.wait_for(self.queue, Duration::ZERO) {
            Waited::Ended(result) => return Ok(result),
            Waited::Underway(pending) => pending,
        };
        let begun_ns = clock::now_ns();
        loop {
            let waited = pending.wait_for(self.queue, PROBE);
            let blocked_ns = clock::now_ns().saturating_sub(begun_ns);
            match waited {
                Waited::Ended(result) => {
                    *self.blocked_ns += blocked_ns;
                    return Ok(result);
                }
                Waited::Underway(_) if blocked_ns >= self.patience_ns => {
                    return Err(TileError::late(neighbour.at, self.patience_ns));
                }
                Waited::Underway(underway) => pending = underway,
            }
            self.probe(neighbour)?;
        }
    }

    /// [`Self::end`] of a wait for the neighbour's notification; `again` is the same wait.
    pub(super) fn notified(
        &mut self,
        mut pending: Pending<()>,
        again: impl Fn() -> Result<Request<()>, TileError>,
        neighbour: &Neighbour,
    ) -> Result<(), TileError> {
        loop {
            match self.end(pending, neighbour)? {
                Ok(_) => return Ok(()),
                // What came before its deadline is still there to be waited for.
                Err(error) if error.cause == Cause::Status(Status::DeadlineExceeded) => {
                    pending = self.queue.submit(again()?)?;
                }
                // That one fails is this node's doing.
                Err(error) => return Err(TileError::Own(error.cause)),
            }
        }
    }

    /// [`Self::end`] of a request to the neighbour.
    pub(super) fn done<B: Payload>(
        &mut self,
        pending: Pending<B>,
        neighbour: &Neighbour,
    ) -> Result<B, TileError> {
        let result = self.end(pending, neighbour)?;
        let done = result.map_err(|it| TileError::of(neighbour.at, self.patience_ns, &it))?;
        Ok(done.payload)
    }

    fn probe(&mut self, neighbour: &Neighbour) -> Result<(), TileError> {
        let buffer = self.client.allocate(8)?;
        let request = Request::read(&neighbour.handle, 0, buffer).deadline(PROBE_LIMIT);
        let queue = self.asking.as_deref_mut().unwrap_or(self.queue);
        match queue.run(request) {
            Ok(_) => Ok(()),
            Err(error) if error.cause == Cause::Status(Status::DeadlineExceeded) => Ok(()),
            Err(error) => Err(TileError::of(neighbour.at, self.patience_ns, &error)),
        }
    }
}

/// A neighbour before this process.
#[derive(Debug)]
pub(super) struct Inlet {
    pub(super) neighbour: Neighbour,
    /// A copy of its border of the tile that is computed, with its stamp.
    border: Vec<u8>,
    arriving: Option<Pending<()>>,
    /// Notifications to it that slots are free, under way.
    freed: VecDeque<Pending<()>>,
}

impl Inlet {
    pub(super) fn new(neighbour: Neighbour) -> Self {
        let freed = VecDeque::with_capacity(SLOTS as usize);
        Self { neighbour, border: Vec::new(), arriving: None, freed }
    }

    pub(super) fn forget(&mut self) {
        self.arriving = None;
        self.freed.clear();
    }

    /// Has the daemon wait for the next border.
    pub(super) fn expect(&mut self, own: &Own, queue: &mut Queue) -> Result<(), TileError> {
        if self.arriving.is_none() {
            let request = own.wait(self.neighbour.axis.arrived(), 1)?;
            self.arriving = Some(queue.submit(request)?);
        }
        Ok(())
    }

    /// Takes the border of tile `number`, and gives its slot back.
    ///
    /// Copied out, although nobody writes to the slot before it is given back: that is the
    /// neighbour's word, and one that breaks it may spoil numbers, but not what the language
    /// promises of a slice. The slot is free again before the computation begins, so two are as
    /// good as three without a copy.
    pub(super) fn receive(
        &mut self,
        number: u64,
        own: &Own,
        waiting: &mut Waiting<'_>,
    ) -> Result<Stamp, TileError> {
        self.expect(own, waiting.queue)?;
        let arriving = self.arriving.take().expect("expected above if it was not");
        let again = || own.wait(self.neighbour.axis.arrived(), 1);
        waiting.notified(arriving, again, &self.neighbour)?;
        let (export, layout) = (own.export_ref()?, own.layout());
        let Neighbour { at, axis, .. } = self.neighbour;
        let slot = layout.slot(axis, number) as usize;
        let mut stamp = [0; STAMP_BYTES];
        let inside = "a slot lies in the region";
        export.read_at(slot, &mut stamp).expect(inside);
        let stamp = Stamp::parse(&stamp);
        if stamp.height == 0 || stamp.height > layout.height_max {
            let (what, ours) = ("height of a tile", layout.height_max);
            return Err(TileError::Mismatch { at, what, ours, theirs: stamp.height });
        }
        self.border.resize(layout.border_bytes(axis, stamp.height) - STAMP_BYTES, 0);
        export.read_at(slot + STAMP_BYTES, &mut self.border).expect(inside);
        Ok(stamp)
    }

    /// Tells the neighbour that the slot of the border just taken is free.
    pub(super) fn give_back(&mut self, waiting: &mut Waiting<'_>) -> Result<(), TileError> {
        if self.freed.len() as u64 == SLOTS {
            let oldest = self.freed.pop_front().expect("there are some");
            waiting.done(oldest, &self.neighbour)?;
        }
        let patience = Duration::from_nanos(waiting.patience_ns);
        let request = Request::notify(&self.neighbour.handle, self.neighbour.axis.taken());
        self.freed.push_back(waiting.queue.submit(request.deadline(patience))?);
        waiting.queue.flush();
        Ok(())
    }

    /// Waits until the neighbour knows of all free slots.
    pub(super) fn finish(&mut self, waiting: &mut Waiting<'_>) -> Result<(), TileError> {
        while let Some(freed) = self.freed.pop_front() {
            waiting.done(freed, &self.neighbour)?;
        }
        Ok(())
    }

    pub(super) fn border(&self) -> &[u8] {
        &self.border
    }
}

/// A buffer for a border, or the put that has it.
#[derive(Debug)]
enum Border {
    Here(Buffer),
    Sent(Pending<Buffer>),
    /// The buffer is being handed over, or was lost by a failure.
    Gone,
}

/// A neighbour after this process.
#[derive(Debug)]
pub(super) struct Outlet {
    pub(super) neighbour: Neighbour,
    borders: [Border; SLOTS as usize],
    /// A wait for the next slot to be free.
    freeing: Option<Pending<()>>,
    /// Slots of this run that were free again and taken.
    freed: u64,
}

impl Outlet {
    pub(super) fn new(client: &Client, neighbour: Neighbour) -> Result<Self, TileError> {
        let bytes = neighbour.layout.border_bytes(neighbour.axis, neighbour.layout.height_max);
        let border = || client.allocate(bytes).map(Border::Here);
        let borders = [border()?, border()?];
        Ok(Self { neighbour, borders, freeing: None, freed: 0 })
    }

    pub(super) fn forget(&mut self) {
        self.borders = [Border::Gone, Border::Gone];
        self.freeing = None;
    }

    pub(super) fn begin(&mut self) {
        self.freed = 0;
    }

    /// Waits until the buffer for tile `number` is free, and has room for that height.
    pub(super) fn make_room(
        &mut self,
        number: u64,
        height: u64,
        waiting: &mut Waiting<'_>,
    ) -> Result<(), TileError> {
        self.arrive(number, waiting)?;
        let Neighbour { axis, layout, .. } = &self.neighbour;
        let bytes = layout.border_bytes(*axis, height);
        if let Border::Here(buffer) = &mut self.borders[(number % SLOTS) as usize] {
            buffer.set_len(bytes).expect("allocated for the highest tile");
        }
        Ok(())
    }

    /// Waits until the put of tile `number`, if it is under way, is over.
    pub(super) fn arrive(
        &mut self,
        number: u64,
        waiting: &mut Waiting<'_>,
    ) -> Result<(), TileError> {
        let border = &mut self.borders[(number % SLOTS) as usize];
        match std::mem::replace(border, Border::Gone) {
            Border::Sent(pending) => {
                *border = Border::Here(waiting.done(pending, &self.neighbour)?);
            }
            other => *border = other,
        }
        Ok(())
    }

    /// The border of tile `number`, to be filled.
    pub(super) fn border(&mut self, number: u64) -> Option<&mut [u8]> {
        match &mut self.borders[(number % SLOTS) as usize] {
            Border::Here(buffer) => Some(&mut buffer.as_mut_slice()[STAMP_BYTES..]),
            Border::Sent(_) | Border::Gone => None,
        }
    }

    /// Puts the border of a tile into its slot once that is free, and notifies. On its way when
    /// this comes back.
    pub(super) fn send(
        &mut self,
        stamp: Stamp,
        own: &Own,
        waiting: &mut Waiting<'_>,
    ) -> Result<(), TileError> {
        if stamp.tile >= SLOTS {
            self.expect_slot(own, waiting.queue)?;
            let freeing = self.freeing.take().expect("expected above if it was not");
            let again = || own.wait(self.neighbour.axis.taken(), 1);
            waiting.notified(freeing, again, &self.neighbour)?;
            self.freed += 1;
        }
        let border = &mut self.borders[(stamp.tile % SLOTS) as usize];
        let Border::Here(mut buffer) = std::mem::replace(border, Border::Gone) else {
            return Err(TileError::Over);
        };
        buffer.as_mut_slice()[..STAMP_BYTES].copy_from_slice(&stamp.bytes());
        let Neighbour { axis, layout, handle, .. } = &self.neighbour;
        let patience = Duration::from_nanos(waiting.patience_ns);
        let request = Request::write(handle, layout.slot(*axis, stamp.tile), buffer)
            .then_notify(axis.arrived())
            .deadline(patience);
        *border = Border::Sent(waiting.queue.submit(request)?);
        Ok(())
    }

    /// Has the daemon wait for the slot of the tile after the one just sent.
    pub(super) fn expect_slot(&mut self, own: &Own, queue: &mut Queue) -> Result<(), TileError> {
        if self.freeing.is_none() {
            let request = own.wait(self.neighbour.axis.taken(), 1)?;
            self.freeing = Some(queue.submit(request)?);
        }
        Ok(())
    }

    /// Waits until the neighbour has all of `tiles` borders.
    pub(super) fn finish(
        &mut self,
        tiles: u64,
        own: &Own,
        waiting: &mut Waiting<'_>,
    ) -> Result<(), TileError> {
        for number in 0..SLOTS {
            self.arrive(number, waiting)?;
        }
        let left = tiles - self.freed;
        if left > 0 {
            let again = || own.wait(self.neighbour.axis.taken(), left);
            let all = waiting.queue.submit(again()?)?;
            waiting.notified(all, again, &self.neighbour)?;
        }
        Ok(())
    }

    /// Puts both buffers, of so many rows, or one, without telling anybody.
    fn put(&mut self, count: u64, rows: u64, waiting: &mut Waiting<'_>) -> Result<(), TileError> {
        let Neighbour { axis, layout, handle, .. } = &self.neighbour;
        for number in 0..count {
            let border = &mut self.borders[number as usize];
            let Border::Here(mut buffer) = std::mem::replace(border, Border::Gone) else {
                return Err(TileError::Over);
            };
            let bytes = layout.border_bytes(*axis, rows);
            buffer.set_len(bytes).expect("allocated for the highest tile");
            let patience = Duration::from_nanos(waiting.patience_ns);
            let request = Request::write(handle, layout.slot(*axis, number), buffer);
            *border = Border::Sent(waiting.queue.submit(request.deadline(patience))?);
        }
        Ok(())
    }
}

/// Measures what it takes to hand on borders, to all neighbours after this process at once.
pub(super) fn measure(pipeline: &mut TilePipeline) -> Result<Option<LinkCosts>, TileError> {
    let TilePipeline { client, outlets, queue, back, patience_ns, .. } = pipeline;
    let edges = outlets.as_ref().each().into_iter().flatten();
    let edge_bytes = edges.map(|it| it.neighbour.layout.edge_bytes.along(it.neighbour.axis)).max();
    let Some(edge_bytes) = edge_bytes else { return Ok(None) };
    let height_max = pipeline.own.layout.height_max;
    let many = (MEASURED_BYTES / edge_bytes).clamp(1, height_max);
    let mut blocked_ns = 0;
    let mut waiting = Waiting {
        client,
        queue,
        asking: Some(back),
        patience_ns: *patience_ns,
        blocked_ns: &mut blocked_ns,
    };
    let mut samples = Vec::with_capacity(4 * MEASUREMENTS);
    // The first ones are not like the others: lanes and daemons wake up.
    for number in 0..=MEASUREMENTS {
        for (count, rows) in [(1, 1), (2, 1), (1, many), (2, many)] {
            let begun_ns = clock::now_ns();
            for outlet in [&mut outlets.x, &mut outlets.y].into_iter().flatten() {
                outlet.put(count, rows, &mut waiting)?;
            }
            waiting.queue.flush();
            let submitted_ns = clock::now_ns();
            for outlet in [&mut outlets.x, &mut outlets.y].into_iter().flatten() {
                (0..count).try_for_each(|number| outlet.arrive(number, &mut waiting))?;
            }
            let ended_ns = clock::now_ns();
            if number > 0 {
                let seconds = |ns: u64| ns.saturating_sub(begun_ns) as f64 * 1e-9;
                let (submit, seconds) = (seconds(submitted_ns), seconds(ended_ns));
                samples.push(LinkSample { count, rows, submit, seconds });
            }
        }
    }
    Ok(Some(LinkCosts::of(&samples, many)))
}
