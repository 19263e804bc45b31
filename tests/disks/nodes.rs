//! Two daemons that offer one directory, and a client of the first: each file is local to it, and
//! remote.

use std::path::Path;
use std::time::Duration;

use piped_client::{
    Buffer, BufferState, Client, ClientBuilder, Done, Handle, OpenOptions, Payload, Pending, Queue,
    Request, RequestError, Status, SubmitFault, Waited,
};
use system_tests::process::{Daemon, PATIENCE, Programs, free_address};

pub(crate) struct Nodes {
    pub(crate) alpha: Daemon,
    pub(crate) beta: Daemon,
    pub(crate) settings: [String; 2],
    programs: Programs,
    directory: tempfile::TempDir,
}

/// Where a file is, as the client sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// A file of the client's own process.
    Passed,
    /// Below an export of its daemon.
    Local,
    /// Below an export of the peer.
    Remote,
}

pub(crate) const PLACES: [Place; 3] = [Place::Passed, Place::Local, Place::Remote];

impl Nodes {
    /// Both offer `sick` and `sound`.
    pub(crate) fn start(programs: &Programs, sick: &Path, sound: &Path) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let address = free_address();
        let (sick, sound) = (sick.display(), sound.display());
        let exports = format!(
            "[exports.sick]\npath = \"{sick}\"\nwrite = true\n\
             [exports.sound]\npath = \"{sound}\"\nwrite = true\n"
        );
        let settings = [
            // With checksums writes are cut before anything is known of the disk there.
            format!("[peers.beta]\naddress = \"{address}\"\nchecksum = \"payload\"\n{exports}"),
            format!("[listen]\naddress = \"{address}\"\n{exports}"),
        ];
        let beta = Daemon::start(programs, directory.path(), "beta", &settings[1]);
        let alpha = Daemon::start(programs, directory.path(), "alpha", &settings[0]);
        alpha.await_lanes();
        Self { alpha, beta, settings, programs: programs.clone(), directory }
    }

    /// Another daemon of the first one's files, while that one is there.
    pub(crate) fn next_alpha(&self) -> Daemon {
        Daemon::start(&self.programs, self.directory.path(), "alpha", &self.settings[0])
    }

    /// As [`Self::next_alpha`].
    pub(crate) fn next_beta(&self) -> Daemon {
        Daemon::start(&self.programs, self.directory.path(), "beta", &self.settings[1])
    }

    pub(crate) fn client(&self) -> Session {
        Session::of(&self.alpha)
    }
}

pub(crate) struct Session {
    pub(crate) client: Client,
    pub(crate) queue: Queue,
}

impl Session {
    pub(crate) fn of(daemon: &Daemon) -> Self {
        let builder = ClientBuilder::new().depth(256).arena_bytes(64 << 20).timeout(PATIENCE);
        let client = builder.connect(daemon.client_socket()).expect("it serves");
        let queue = client.queue().expect("a queue");
        Self { client, queue }
    }

    /// A file for reading and writing; `directory` is what the export offers.
    pub(crate) fn open(&self, place: Place, export: &str, directory: &Path, name: &str) -> Handle {
        let options = OpenOptions::read_write().create(true);
        let handle = match place {
            Place::Passed => self.client.open_file(directory.join(name), options),
            Place::Local => self.client.open_export(None, export, name, options),
            Place::Remote => self.client.open_export(Some("beta"), export, name, options),
        };
        handle.unwrap_or_else(|error| panic!("{place:?} {name}: {error}"))
    }

    pub(crate) fn buffer(&self, length: usize) -> Buffer {
        self.client.allocate(length).expect("memory")
    }

    pub(crate) fn filled(&self, bytes: &[u8]) -> Buffer {
        let mut buffer = self.buffer(bytes.len());
        buffer.as_mut_slice().copy_from_slice(bytes);
        buffer
    }

    pub(crate) fn run<B: Payload>(&mut self, request: Request<B>) -> Result<Done<B>, RequestError> {
        self.run_or_gone(request).expect("the daemon is there")
    }

    /// The same; `None` if the daemon was gone before it could be asked.
    pub(crate) fn run_or_gone<B: Payload>(
        &mut self,
        request: Request<B>,
    ) -> Option<Result<Done<B>, RequestError>> {
        let pending = match self.queue.submit(request) {
            Ok(pending) => pending,
            Err(error) => {
                assert_eq!(error.fault, SubmitFault::Disconnected);
                return None;
            }
        };
        self.queue.flush();
        Some(self.end(pending))
    }

    pub(crate) fn submit<B: Payload>(&mut self, request: Request<B>) -> Pending<B> {
        let pending = self.queue.submit(request);
        self.queue.flush();
        pending.unwrap_or_else(|_| panic!("room in the queue"))
    }

    /// The end of a request, which must come.
    pub(crate) fn end<B: Payload>(&mut self, pending: Pending<B>) -> Result<Done<B>, RequestError> {
        match pending.wait_for(&mut self.queue, PATIENCE) {
            Waited::Ended(result) => result,
            Waited::Underway(_) => panic!("a request did not end in {PATIENCE:?}"),
        }
    }

    /// Reads what must be there.
    pub(crate) fn check(&mut self, file: &Handle, offset: u64, expected: &[u8]) {
        let read = Request::read(file, offset, self.buffer(expected.len()));
        let done = self.run(read.deadline(LATE)).expect("sound");
        assert_eq!(done.bytes, expected.len() as u64);
        check_bytes(done.payload.as_slice(), expected);
    }

    /// Writes what must be taken.
    pub(crate) fn write(&mut self, file: &Handle, offset: u64, bytes: &[u8], durable: bool) {
        let write = Request::write(file, offset, self.filled(bytes)).deadline(LATE);
        let done = self.run(if durable { write.durable() } else { write }).expect("sound");
        assert_eq!(done.bytes, bytes.len() as u64);
    }
}

/// Later than any of the events of a test.
pub(crate) const LATE: Duration = Duration::from_secs(120);

/// The failure of a request, whose buffer came back.
pub(crate) fn returned(error: RequestError) -> (Status, u64, Buffer) {
    let (status, bytes) = (error.status().unwrap_or_else(|| panic!("{error}")), error.bytes);
    match error.buffer {
        BufferState::Returned(buffer) => (status, bytes, buffer),
        other => panic!("{status}: {other:?}"),
    }
}

/// Compares all, and shows the first difference only.
pub(crate) fn check_bytes(seen: &[u8], expected: &[u8]) {
    assert_eq!(seen.len(), expected.len());
    let wrong = seen.iter().zip(expected).filter(|(one, other)| one != other).count();
    let first = seen.iter().zip(expected).position(|(one, other)| one != other);
    assert_eq!(first, None, "{wrong} bytes differ");
}

/// Other bytes for each number.
pub(crate) fn noise(number: u64, length: usize) -> Vec<u8> {
    let mut state = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    (0..length).map(|_| next()).collect()
}
