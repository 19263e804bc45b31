//! A queue in an event loop: `epoll_loop SOCKET REQUESTS`.
//!
//! The completion descriptor is an ordinary one: it fits epoll, and through `AsFd`/`AsRawFd` also
//! tokio's `AsyncFd`. The order is: take everything, arm, wait, drain.

use std::error::Error;
use std::path::Path;

use piped_client::{Client, Request};
use rustix::event::epoll;

fn main() -> Result<(), Box<dyn Error>> {
    let given: Vec<_> = std::env::args().skip(1).collect();
    let [socket, requests] = given.as_slice() else {
        return Err("usage: epoll_loop SOCKET REQUESTS".into());
    };
    println!("{} requests ended", run(socket.as_ref(), requests.parse()?)?);
    Ok(())
}

/// Returns how many requests ended.
pub fn run(socket: &Path, requests: u64) -> Result<u64, Box<dyn Error>> {
    let client = Client::connect(socket)?;
    let mut queue = client.queue()?;
    let events = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let interest = epoll::EventData::new_u64(0);
    epoll::add(&events, &queue, interest, epoll::EventFlags::IN)?;
    let (mut submitted, mut ended) = (0, 0);
    while ended < requests {
        while submitted < requests && submitted - ended < 8 {
            queue.submit_detached(Request::nop().tag(submitted))?;
            submitted += 1;
        }
        while let Some(completed) = queue.poll() {
            completed.result?;
            ended += 1;
        }
        // Not armed: something ended in between, so take that first. With nothing under way there
        // is nothing to wait for.
        if ended < submitted && queue.arm() {
            let mut ready = Vec::with_capacity(8);
            epoll::wait(&events, rustix::buffer::spare_capacity(&mut ready), None)?;
            // Timers and sockets of the application would be served here too.
            queue.drain();
        }
    }
    Ok(ended)
}
