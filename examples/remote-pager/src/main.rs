//! `remote_pager`: sorts, searches and scans memory or a file of another node as if it were here.
//!
//! ```sh
//! remote_pager offer --region records --size 64MiB        # on beta
//! remote_pager sort --peer beta --region records          # here
//! remote_pager search 4711 --peer beta --region records
//! remote_pager scan --peer beta --file data:blocks
//! ```
#![forbid(unsafe_code)]

mod work;

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Args, Parser, Subcommand};
use piped_client::{Access, Client, ClientBuilder, Handle, OpenOptions};
use remote_pager::{Counts, Options, PAGE, Pager};

/// Sort, search and scan what lies on another node as if it were memory of this process.
#[derive(Debug, Parser)]
#[command(name = "remote_pager", version)]
struct Arguments {
    /// Where the daemon of this node listens for clients.
    #[arg(
        long,
        global = true,
        env = "PIPED_CLIENT_SOCKET",
        default_value = "/run/piped/client.sock"
    )]
    socket: PathBuf,
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Sort records of 8 bytes (numbers, the least byte first) in place, and write them back.
    Sort(Source),
    /// Find a number among sorted records: touches few pages.
    Search {
        /// The number to look for.
        key: u64,
        #[command(flatten)]
        source: Source,
    },
    /// Read everything once, in order.
    Scan(Source),
    /// Offer a region of random records to other nodes, until Ctrl-C.
    Offer {
        /// Name of the exported region.
        #[arg(long)]
        region: String,
        /// Length of the exported region.
        #[arg(long, default_value = "64MiB", value_parser = bytes)]
        size: usize,
    },
    /// Say what this kernel lets this user do.
    Check {
        /// Ask for faults of user code only, as in the other commands.
        #[arg(long)]
        user_mode_only: bool,
    },
}

/// The mapping: of what, and how.
#[derive(Debug, Args)]
struct Source {
    /// The node that has it; without, this one.
    #[arg(long)]
    peer: Option<String>,
    /// A region that a client there exports.
    #[arg(long, required_unless_present = "file", conflicts_with = "file")]
    region: Option<String>,
    /// A file of an export there.
    #[arg(long, value_name = "EXPORT:PATH", value_parser = file)]
    file: Option<(String, String)>,
    /// Memory for pages that are here at once.
    #[arg(long, default_value = "64MiB", value_parser = bytes)]
    resident: usize,
    /// The longest strip that is fetched ahead; 0: no page is.
    #[arg(long, default_value = "256KiB", value_parser = bytes)]
    strip: usize,
    /// Memory for strips that are ahead.
    #[arg(long, default_value = "4MiB", value_parser = bytes)]
    ahead: usize,
    /// Seconds that a page may take, whatever happens to the other node.
    #[arg(long, default_value_t = 30, value_name = "SECONDS")]
    patience: u64,
    /// Serve faults of this program's own code only: needs no right.
    #[arg(long)]
    user_mode_only: bool,
}

fn main() -> ExitCode {
    match run(Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("remote_pager: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: Arguments) -> Result<(), Box<dyn Error>> {
    let socket = arguments.socket;
    match arguments.what {
        What::Sort(source) => {
            let mut pager = source.map(socket, true)?;
            let begun = now();
            let bytes = pager.bytes_mut().ok_or("it was mapped for reading")?;
            let records = work::sort(bytes);
            let sorted = begun.elapsed();
            let counts = pager.close()?;
            let all = begun.elapsed();
            println!("{records} records sorted in {}, all written back in {}", s(sorted), s(all));
            tell(counts, all);
        }
        What::Search { key, source } => {
            let pager = source.map(socket, false)?;
            let begun = now();
            let found = work::search(pager.bytes(), key);
            let took = begun.elapsed();
            match found {
                Ok(place) => println!("{key} is record {place}, found in {}", s(took)),
                Err(place) => println!("{key} is not there; it would be record {place}"),
            }
            tell(pager.close()?, took);
        }
        What::Scan(source) => {
            let pager = source.map(socket, false)?;
            let begun = now();
            let (sum, sorted) = work::scan(pager.bytes());
            let took = begun.elapsed();
            let order = if sorted { "sorted" } else { "not sorted" };
            println!("the records' sum is {sum:#018x}, they are {order}; {}", s(took));
            tell(pager.close()?, took);
        }
        What::Offer { region, size } => offer(socket, &region, size)?,
        What::Check { user_mode_only } => {
            let features = remote_pager::probe(user_mode_only)?;
            let yes = |is| if is { "yes" } else { "no" };
            println!("faults of system calls: {}", yes(features.kernel_faults));
            println!("writes are noticed: {}", yes(features.write_protect));
            println!("a lost page is SIGBUS: {}", yes(features.poison));
        }
    }
    Ok(())
}

impl Source {
    fn map(&self, socket: PathBuf, write: bool) -> Result<Pager, Box<dyn Error>> {
        // Before the daemon is asked: without the right there is nothing to ask for.
        remote_pager::probe(self.user_mode_only)?;
        let patience = Duration::from_secs(self.patience);
        let client = ClientBuilder::new().reconnect(patience).connect(socket)?;
        let handle = self.open(&client, write)?;
        let mut options = Options::new()
            .resident_bytes(self.resident)
            .strip_bytes_max(self.strip)
            .ahead_bytes_max(self.ahead)
            .patience(patience)
            .on_loss(|error| {
                eprintln!("remote_pager: {error}");
                std::process::exit(1);
            });
        if write {
            options = options.writable();
        }
        if self.file.is_some() {
            options = options.durable();
        }
        if self.user_mode_only {
            options = options.user_mode_only();
        }
        Ok(Pager::map(&client, &handle, options)?)
    }

    fn open(&self, client: &Client, write: bool) -> Result<Handle, Box<dyn Error>> {
        let peer = self.peer.as_deref();
        let access = if write { Access::READ_WRITE } else { Access::READ };
        match (&self.region, &self.file) {
            (Some(region), _) => Ok(client.open_region(peer, region, access)?),
            (None, Some((export, path))) => {
                Ok(client.open_export(peer, export, path, OpenOptions::new(access))?)
            }
            (None, None) => Err("name a --region or a --file".into()),
        }
    }
}

fn offer(socket: PathBuf, name: &str, size: usize) -> Result<(), Box<dyn Error>> {
    let client = ClientBuilder::new().arena_bytes(size as u64).connect(socket)?;
    let mut buffer = client.allocate(size)?;
    // SplitMix64: the same records each time.
    let (records, _) = buffer.as_mut_slice().as_chunks_mut::<{ work::RECORD }>();
    for (number, record) in (1_u64..).zip(records) {
        let mut mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        *record = (mixed ^ (mixed >> 31)).to_le_bytes();
    }
    let region = client.export_region(name, buffer, Access::READ_WRITE)?;
    println!("{} bytes of random records are offered as `{name}`; Ctrl-C ends it", region.len());
    while client.is_connected() {
        std::thread::park_timeout(Duration::from_secs(1));
    }
    Err("the daemon ended, and with it the region".into())
}

fn tell(counts: Counts, took: Duration) {
    let Counts { faults, write_faults, gets, puts, installed, unused, evicted, saved, .. } = counts;
    let mib = |pages: u64| (pages * PAGE as u64) as f64 / (1 << 20) as f64;
    println!("faults   {faults}, of them {write_faults} first writes to a page that was here");
    println!(
        "pages    {installed} came by {gets} gets: {} ahead, {} of them late; {unused} more were \
         not used",
        counts.ahead, counts.late
    );
    println!("         hit rate {:.1} %; {evicted} made room", 100.0 * counts.hit_rate());
    println!("written  {saved} pages by {puts} puts");
    let (moved_in, moved_out) = (mib(installed + unused), mib(saved));
    let rate = (moved_in + moved_out) / took.as_secs_f64();
    println!("moved    {moved_in:.1} MiB in, {moved_out:.1} MiB out, {rate:.0} MiB/s");
    if counts.retries > 0 {
        println!("trouble  {} gets and puts were asked for again", counts.retries);
    }
}

fn s(time: Duration) -> String {
    format!("{:.3} s", time.as_secs_f64())
}

#[expect(clippy::disallowed_methods, reason = "a command-line tool that tells how long it took")]
fn now() -> Instant {
    Instant::now()
}

/// Parses a file's name, `EXPORT:PATH`.
fn file(text: &str) -> Result<(String, String), String> {
    match text.split_once(':') {
        Some((export, path)) if !export.is_empty() && !path.is_empty() => {
            Ok((export.to_owned(), path.to_owned()))
        }
        _ => Err("it is written EXPORT:PATH, such as data:blocks".to_owned()),
    }
}

/// Bytes, with KiB, MiB or GiB.
fn bytes(text: &str) -> Result<usize, String> {
    let units = [("KiB", 10), ("MiB", 20), ("GiB", 30), ("", 0)];
    let unit = units.iter().find(|(unit, _)| text.ends_with(unit));
    let (unit, shift) = unit.expect("the last one fits everything");
    let number = text[..text.len() - unit.len()].trim().parse::<usize>().ok();
    let bytes = number.and_then(|number| number.checked_mul(1 << shift));
    bytes.ok_or_else(|| "a length is written like 4096, 64KiB or 16MiB".to_owned())
}
