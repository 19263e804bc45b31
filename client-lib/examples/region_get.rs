//! Offer memory by name, and get a piece of it: `region_get SOCKET`.
//!
//! Here both ends are one program and one node; `Some("beta")` instead of `None` gets it from the
//! node `beta`.

use std::error::Error;
use std::path::Path;

use piped_client::{Access, Client};

fn main() -> Result<(), Box<dyn Error>> {
    let given: Vec<_> = std::env::args().skip(1).collect();
    let [socket] = given.as_slice() else {
        return Err("usage: region_get SOCKET".into());
    };
    println!("{}", String::from_utf8_lossy(&run(socket.as_ref())?));
    Ok(())
}

/// Returns what was got.
pub fn run(socket: &Path) -> Result<Vec<u8>, Box<dyn Error>> {
    let client = Client::connect(socket)?;
    let mut halo = client.allocate(8192)?;
    halo.write_at(4096, b"the left edge")?;
    // From here on others may touch it, so bytes are only copied in and out.
    let exported = client.export_region("halo", halo, Access::READ_WRITE)?;

    let region = client.open_region(None, "halo", Access::READ_WRITE)?;
    let mut queue = client.queue()?;
    let (edge, bytes) = queue.read(&region, 4096, client.allocate(13)?)?;
    let got = edge.as_slice()[..bytes].to_vec();

    let mut answer = edge;
    answer.write_at(0, b"a new edge...")?;
    queue.write(&region, 4096, answer)?;
    let mut seen = [0; 13];
    exported.read_at(4096, &mut seen)?;
    assert_eq!(&seen, b"a new edge...");
    // The memory comes back when nobody touches it any more.
    exported.close()?;
    Ok(got)
}
