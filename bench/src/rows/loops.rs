//! Loops over another node's memory as in real programs: after one get of everything, and by
//! strips.

use std::cell::{Cell, RefCell};
use std::path::Path;

use parking_lot::Mutex;
use piped_client::{
    Access, Buffer, Client, ClientBuilder, Handle, Queue, RegionExport, StripReader, Strips,
    WaitPolicy,
};

use crate::clock;
use crate::failure::{Doing as _, Failure};
use crate::kernels::{ELEMENT, Kernel, Work, steps_for};
use crate::nodes::Node;
use crate::rows::KIB;
use crate::stats::median;

/// Bytes and repetitions for timing a kernel while its computation is being set.
const TIMED_BYTES: usize = 256 * KIB;
const TIMINGS: usize = 7;

/// Memory of a client: the largest vector, and the strips of two loops over it.
const ARENA_BYTES: u64 = 40 << 20;

/// The client with its queue, and the other node's memory.
#[derive(Debug)]
pub(super) struct Remote {
    client: Client,
    queue: Mutex<Queue>,
    handle: Handle,
    _owner: Client,
    _export: RegionExport,
}

impl Remote {
    /// Connects a client of `asker`, with memory of that name at `owner`, which `asker` calls
    /// `peer`.
    pub(super) fn open(
        asker: &Node,
        (owner, peer): (&Node, &str),
        (name, bytes): (&str, usize),
        wait: WaitPolicy,
    ) -> Result<Self, Failure> {
        let connect = |socket: &Path| {
            ClientBuilder::new()
                .arena_bytes(ARENA_BYTES)
                .wait(wait)
                .connect(socket)
                .doing("connect")
        };
        let owner = connect(&owner.client_socket)?;
        let mut buffer = owner.allocate(bytes).doing("allocate")?;
        for (place, byte) in buffer.as_mut_slice().iter_mut().enumerate() {
            *byte = (place % 251) as u8;
        }
        let export = owner.export_region(name, buffer, Access::READ).doing("export")?;
        let client = connect(&asker.client_socket)?;
        let handle = client.open_region(Some(peer), name, Access::READ).doing("open")?;
        let mut queue = client.queue().doing("queue")?;
        queue.set_wait_policy(wait);
        let queue = Mutex::new(queue);
        Ok(Self { client, queue, handle, _owner: owner, _export: export })
    }
}

/// A loop over this many bytes of the memory.
pub(super) struct Loop<'a> {
    remote: &'a Remote,
    bytes: usize,
    work: RefCell<Work>,
    /// Buffer for one get of everything.
    buffer: Cell<Option<Buffer>>,
    wanted: u64,
    /// Number of strips of the last loop by strips.
    strips: Cell<usize>,
}

impl<'a> Loop<'a> {
    /// Loop with so much computation on a byte, in seconds.
    pub(super) fn new(
        remote: &'a Remote,
        (kernel, bytes): (Kernel, usize),
        compute: f64,
    ) -> Result<Self, Failure> {
        let buffer = Cell::new(Some(remote.client.allocate(bytes).doing("allocate")?));
        let work = RefCell::new(Work::new(kernel, bytes));
        let it = Self { remote, bytes, work, buffer, wanted: 0, strips: Cell::new(0) };
        let timed = bytes.min(TIMED_BYTES);
        let steps = steps_for(compute * timed as f64, |steps| {
            it.work.borrow_mut().set_steps(steps);
            let times: Result<Vec<f64>, _> = (0..TIMINGS).map(|_| it.computed(timed)).collect();
            median(&times?).ok_or_else(|| Failure::new("nothing was timed"))
        })?;
        it.work.borrow_mut().set_steps(steps);
        it.vectorised()?;
        let wanted = it.work.borrow().outcome();
        Ok(Self { wanted, ..it })
    }

    /// Time of one get, in seconds.
    pub(super) fn get(&self, bytes: usize) -> Result<f64, Failure> {
        let mut buffer = self.buffer.take().expect("it is here between loops");
        buffer.set_len(bytes).doing("a shorter get")?;
        let begun = clock::now();
        let (buffer, _) =
            self.remote.queue.lock().read(&self.remote.handle, 0, buffer).doing("get")?;
        let seconds = begun.elapsed().as_secs_f64();
        self.buffer.set(Some(buffer));
        Ok(seconds)
    }

    /// Time of one get with all computation after it.
    pub(super) fn vectorised(&self) -> Result<f64, Failure> {
        let work = &mut *self.work.borrow_mut();
        work.clear();
        let begun = clock::now();
        self.get(self.bytes)?;
        let buffer = self.buffer.take().expect("it is here between loops");
        work.compute(0, buffer.as_slice());
        self.buffer.set(Some(buffer));
        Ok(begun.elapsed().as_secs_f64())
    }

    /// Time of a loop by strips.
    pub(super) fn stripped(&self, strips: Strips) -> Result<f64, Failure> {
        let Remote { client, queue, handle, .. } = self.remote;
        let (queue, work) = (&mut *queue.lock(), &mut *self.work.borrow_mut());
        work.clear();
        let begun = clock::now();
        let all = 0..self.bytes as u64;
        let mut reader =
            StripReader::open(client, handle, all, strips.grain(ELEMENT)).doing("strips")?;
        let mut count = 0;
        while let Some(strip) = reader.next(queue).doing("a strip")? {
            work.compute(strip.offset(), &strip);
            count += 1;
        }
        let seconds = begun.elapsed().as_secs_f64();
        self.strips.set(count);
        if work.outcome() != self.wanted {
            return Err(Failure::new("the strips' outcome is another than that of one get"));
        }
        Ok(seconds)
    }

    /// Number of strips of the last loop.
    pub(super) fn strips(&self) -> usize {
        self.strips.get()
    }

    /// Time of the computation on bytes that have just come, in seconds: bytes that were computed
    /// on before would be in a nearer cache.
    pub(super) fn computed(&self, bytes: usize) -> Result<f64, Failure> {
        self.get(bytes)?;
        let buffer = self.buffer.take().expect("it is here between loops");
        let begun = clock::now();
        self.work.borrow_mut().compute(0, buffer.as_slice());
        let seconds = begun.elapsed().as_secs_f64();
        self.buffer.set(Some(buffer));
        Ok(seconds)
    }

    /// Time of a submission for the thread, in seconds, without the get's own time.
    pub(super) fn issued(&self) -> Result<f64, Failure> {
        let buffer = self.buffer.take().expect("it is here between loops");
        let queue = &mut *self.remote.queue.lock();
        let begun = clock::now();
        let pending = queue.submit_read(&self.remote.handle, 0, buffer).map_err(|it| it.fault);
        let pending = pending.doing("submit")?;
        queue.flush();
        let seconds = begun.elapsed().as_secs_f64();
        self.buffer.set(Some(pending.wait(queue).doing("get")?.payload));
        Ok(seconds)
    }
}
