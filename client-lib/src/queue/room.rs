//! Room of a queue for one more request: whether there is any, and waits for it.

use std::time::Duration;

use super::Queue;

impl Queue {
    /// Whether one more request would enter now, or be refused for another reason than a full
    /// queue. Results that nobody has taken and buffers that the kernel holds have their places
    /// still. A look at the queue's own memory, without one at the daemon's: [`Self::poll`] first.
    #[must_use]
    pub fn has_room(&mut self) -> bool {
        self.core_mut().has_place()
    }

    /// Waits until there is room for one more request, or a result that [`Self::poll`] gives; zero
    /// only looks. `false`: the time is over, or nothing is under way that could make room. Without
    /// a daemon there is room for requests that outlive it, and a refusal for others.
    pub fn wait_for_room(&mut self, timeout: Duration) -> bool {
        self.has_room()
            || self.wait_until(Some(timeout), |core| core.is_roomy() || core.table.has_ready())
            || self.has_room()
    }

    /// Waits until cancels that the daemon has not answered have left room for a request.
    /// [`Self::run`] does so by itself.
    pub fn make_room(&mut self) {
        let core = self.core_mut();
        if core.awaits_cancels() && !core.has_room() {
            core.wait_until(None, |core| !core.awaits_cancels() || core.has_room());
        }
    }
}

#[cfg(all(test, feature = "async"))]
mod tests {
    use std::os::fd::OwnedFd;

    use piped_core::status::Status;
    use piped_ring::handshake::{Reply, Welcome};
    use piped_ring::{CompletionEntry, CompletionKind, Segment, ServerQueue};

    use super::*;
    use crate::client::Client;
    use crate::connection::{Connection, Shared};
    use crate::control::testing;
    use crate::error::{BufferState, SubmitFault};
    use crate::handle::Handle;
    use crate::request::Request;
    use crate::{ClientBuilder, SocketOrigin};

    /// A queue with one place, something open, and the daemon's side of them.
    fn queue() -> (Queue, Handle, ServerQueue, OwnedFd) {
        let (control, daemon) = testing::pair();
        let server = ServerQueue::create(2).expect("a queue");
        let memory = Segment::create(1 << 16).expect("memory");
        let fds = [memory.fd()].into_iter().chain(server.fds());
        let fds = fds.map(|fd| fd.try_clone_to_owned().expect("a descriptor")).collect();
        let welcome = Welcome {
            features: 0,
            session: 1,
            segments: 1,
            queues: 1,
            shard_cpu: -1,
            client_spin_ns: 0,
            deadline_default_ns: u64::MAX,
        };
        let settings = ClientBuilder::new().settings(("/nowhere".into(), SocketOrigin::Given));
        let begun = Connection::begin(control, (Reply::Welcome(welcome), fds), 1, 1);
        let client = Client::new(Shared::new(settings, begun.expect("a session"), 1));
        let at = (&*client.shared().connection(), &client.shared().link);
        let opened = Reply::Opened { handle: 1, direct_alignment: 0, length: 64 };
        let handle = Handle::from_answer(at, (opened, Vec::new()), None).expect("it is open");
        (client.queue().expect("its ring"), handle, server, daemon)
    }

    fn taken(server: &mut ServerQueue) -> u64 {
        server.take().expect("an honest client").expect("a request").user_data
    }

    fn post(server: &mut ServerQueue, request: u64, kind: CompletionKind) {
        let status = match kind {
            CompletionKind::FinishedHeld => Status::DeadlineExceeded,
            _ => Status::Ok,
        };
        let entry = CompletionEntry::finished(request, status, 0).with_kind(kind);
        server.post(entry).expect("room");
        server.publish();
    }

    #[test]
    fn a_buffer_that_the_kernel_holds_has_its_place_until_it_is_released() {
        let (mut queue, handle, mut server, _daemon) = queue();
        assert!(queue.has_room() && queue.wait_for_room(Duration::ZERO));
        let buffer = queue.allocate(64).expect("room");
        queue.submit_detached(Request::read(&handle, 0, buffer)).expect("room");
        queue.flush();
        assert!(!queue.has_room());
        let request = taken(&mut server);
        post(&mut server, request, CompletionKind::FinishedHeld);
        let ended = queue.wait(Some(Duration::from_secs(60))).expect("it ended");
        let error = ended.result.expect_err("at its deadline");
        assert!(matches!(error.buffer, BufferState::Held));
        assert_eq!(queue.underway(), 0);
        assert!(!queue.has_room() && !queue.wait_for_room(Duration::from_millis(1)));
        let refused = queue.submit(Request::nop()).expect_err("no place");
        assert_eq!(refused.fault, SubmitFault::Full);
        post(&mut server, request, CompletionKind::Released);
        assert!(queue.wait_for_room(Duration::from_secs(60)));
        assert!(queue.submit(Request::nop()).is_ok());
    }

    #[test]
    fn there_is_room_for_a_refusal_when_the_daemon_is_gone() {
        let (mut queue, _handle, server, daemon) = queue();
        let _waits = queue.submit(Request::nop()).expect("room");
        assert!(!queue.has_room());
        drop((server, daemon));
        assert!(queue.wait_for_room(Duration::from_secs(60)));
        let refused = queue.submit(Request::nop()).expect_err("nobody is there");
        assert_eq!(refused.fault, SubmitFault::Disconnected);
    }
}
