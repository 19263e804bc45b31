//! Reads of many tasks over one queue, on tokio: `many_tasks SOCKET FILE TASKS`.
//!
//! Each task reads its share of the file, a block at a time, and gives up a block that takes longer
//! than it likes. A future that is dropped cancels its read; the buffer comes back by itself.

use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use piped_client::{AsyncClient, ClientBuilder, OpenOptions, TokioRuntime};

const BLOCK: usize = 64 << 10;
const PATIENCE: Duration = Duration::from_secs(10);

fn main() -> Result<(), Box<dyn Error>> {
    let given: Vec<_> = std::env::args().skip(1).collect();
    let [socket, file, tasks] = given.as_slice() else {
        return Err("usage: many_tasks SOCKET FILE TASKS".into());
    };
    println!("{} bytes", run(socket.as_ref(), file.as_ref(), tasks.parse()?)?);
    Ok(())
}

/// Returns how many bytes were read.
pub fn run(socket: &Path, path: &Path, tasks: u64) -> Result<u64, Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let runtime = Arc::new(TokioRuntime::current()?);
        let client = AsyncClient::open(ClientBuilder::new(), Some(socket), runtime).await?;
        let file = client.open_file(path, OpenOptions::read()).await?;
        let queue = client.queue().await?;
        let read = |task| {
            let (client, queue, file) = (client.clone(), queue.clone(), file.clone());
            async move {
                let mut buffer = client.allocate(BLOCK).await?;
                let (mut offset, mut sum) = (task * BLOCK as u64, 0);
                while offset < file.len() {
                    let reading = queue.read(&file, offset, buffer);
                    let (filled, bytes) = tokio::time::timeout(PATIENCE, reading).await??;
                    (buffer, sum) = (filled, sum + bytes as u64);
                    offset += tasks * BLOCK as u64;
                }
                Ok::<_, std::io::Error>(sum)
            }
        };
        let running: Vec<_> = (0..tasks).map(|task| tokio::spawn(read(task))).collect();
        let mut sum = 0;
        for task in running {
            sum += task.await??;
        }
        Ok(sum)
    })
}
