//! Add up the numbers of a region while they travel: `strip_reduction SOCKET PEER REGION`.
//!
//! What a vectorised loop does in two steps, one get and one loop over it, goes on at the same time
//! here: while a strip is added up the next ones are on their way.

use std::error::Error;
use std::path::Path;

use piped_client::{Access, Client, StripReader, Strips};

/// Bytes of an element.
const ELEMENT: usize = 8;

fn main() -> Result<(), Box<dyn Error>> {
    let given: Vec<_> = std::env::args().skip(1).collect();
    let [socket, peer, region] = given.as_slice() else {
        return Err("usage: strip_reduction SOCKET PEER REGION".into());
    };
    println!("{}", run(socket.as_ref(), Some(peer), region)?);
    Ok(())
}

/// Returns the sum of the region's numbers.
pub fn run(socket: &Path, peer: Option<&str>, region: &str) -> Result<u64, Box<dyn Error>> {
    let client = Client::connect(socket)?;
    let mut queue = client.queue()?;
    let numbers = client.open_region(peer, region, Access::READ)?;
    let mut sum = 0_u64;
    let strips = Strips::new().grain(ELEMENT);
    let mut reader = StripReader::open(&client, &numbers, 0..numbers.len(), strips)?;
    while let Some(strip) = reader.next(&mut queue)? {
        let elements = strip.as_chunks().0.iter().map(|bytes| u64::from_le_bytes(*bytes));
        sum = elements.fold(sum, u64::wrapping_add);
    }
    Ok(sum)
}
