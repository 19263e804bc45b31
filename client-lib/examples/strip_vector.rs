//! `y += a·x` with `x` in another node's memory and `y` in a file there: `strip_vector SOCKET PEER
//! X EXPORT Y`.
//!
//! Two readers and a writer share one queue: strips of `x` and `y` come while others are computed
//! on and the last ones leave. All three are cut alike, by `fixed`, so that they lie beside each
//! other.

use std::error::Error;
use std::path::Path;

use piped_client::{Access, Client, OpenOptions, StripPolicy, StripReader, StripWriter, Strips};

const STRIP: usize = 64 << 10;

fn main() -> Result<(), Box<dyn Error>> {
    let given: Vec<_> = std::env::args().skip(1).collect();
    let [socket, peer, x, export, y] = given.as_slice() else {
        return Err("usage: strip_vector SOCKET PEER X EXPORT Y".into());
    };
    let bytes = run(socket.as_ref(), Some(peer), x, (export, y), 2.0)?;
    println!("{bytes} bytes of {y} are new");
    Ok(())
}

/// Returns the bytes of `y` that were written.
pub fn run(
    socket: &Path,
    peer: Option<&str>,
    x: &str,
    (export, y): (&str, &str),
    a: f64,
) -> Result<u64, Box<dyn Error>> {
    let client = Client::connect(socket)?;
    let mut queue = client.queue()?;
    let x = client.open_region(peer, x, Access::READ)?;
    let y = client.open_export(peer, export, y, OpenOptions::read_write())?;
    let all = 0..x.len().min(y.len());
    let strips = Strips::new().policy(StripPolicy::Fixed(STRIP));
    let mut xs = StripReader::open(&client, &x, all.clone(), strips)?;
    let mut ys = StripReader::open(&client, &y, all.clone(), strips)?;
    let mut sums = StripWriter::open(&client, &y, all, strips)?;
    while let (Some(x), Some(y)) = (xs.next(&mut queue)?, ys.next(&mut queue)?) {
        let Some(mut sum) = sums.next(&mut queue)? else { break };
        let ((x, _), (y, _)) = (x.as_chunks(), y.as_chunks());
        let (sum, _) = sum.as_chunks_mut();
        for ((sum, y), x) in sum.iter_mut().zip(y).zip(x) {
            *sum = (a.mul_add(f64::from_le_bytes(*x), f64::from_le_bytes(*y))).to_le_bytes();
        }
    }
    Ok(sums.finish(&mut queue)?)
}
