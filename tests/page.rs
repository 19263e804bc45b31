//! The page of `GET /` in a real browser: a daemon with traffic, its page in headless Chromium,
//! what it shows and what it asks for. `PIPED_PAGE_SHOTS=DIR` keeps pictures of it to look at.
#![forbid(unsafe_code)]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Arc, Mutex};
use std::thread;

use piped_client::{Client, OpenOptions};
use system_tests::http::{get, over_tcp, over_unix};
use system_tests::process::{Pair, Programs, command, eventually, free_address, words};

/// A pair that has moved something, and the address of alpha's page.
fn busy(programs: &Programs, directory: &Path) -> (Pair, SocketAddr) {
    let address = free_address();
    let metrics = format!("[metrics]\naddress = \"{address}\"\n");
    let pair = Pair::start_with(programs, directory, &metrics);
    let client = Client::connect(pair.alpha.client_socket()).expect("it serves");
    let mut queue = client.queue().expect("a queue");
    let options = OpenOptions::read_write();
    let remote = client.open_export(Some("beta"), "data", "blocks", options).expect("opened");
    let secret = directory.join("a-name-that-is-nobodys-business");
    std::fs::write(&secret, vec![7; 1 << 20]).expect("written");
    let own = client.open_file(&secret, OpenOptions::read_write()).expect("opened");
    for _ in 0..40 {
        let buffer = client.allocate(1 << 20).expect("memory");
        let (buffer, _) = queue.read(&remote, 0, buffer).expect("read");
        let (buffer, _) = queue.write(&remote, 0, buffer).expect("written");
        queue.write(&own, 0, buffer).expect("written");
    }
    let buffer = client.allocate(1 << 20).expect("memory");
    let (buffer, _) = queue.read(&own, 0, buffer).expect("read");
    queue.write(&remote, 0, buffer).expect("written");
    (pair, address)
}

#[test]
fn the_page_is_at_both_doors_for_who_may_look_and_shows_no_clients_files() {
    let Some(programs) = Programs::find() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let (pair, address) = busy(&programs, directory.path());
    let (head, body) = over_tcp(address, &get("/"));
    let lower = head.to_lowercase();
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    for part in [
        "content-type: text/html; charset=utf-8",
        "content-security-policy: default-src 'none';",
        "x-content-type-options: nosniff",
        "cache-control: no-store",
    ] {
        assert!(lower.contains(part), "{head}");
    }
    let (_, same) = over_unix(&pair.alpha.admin_socket(), &get("/"));
    for body in [&body, &same] {
        assert!(body.starts_with("<!DOCTYPE html>") && body.ends_with("</html>"), "{body}");
        let directory = directory.path().display().to_string();
        for private in ["nobodys-business", "blocks", directory.as_str(), "alpha.toml"] {
            assert!(!body.contains(private), "{private} is on the page\n{body}");
        }
        assert!(!body.contains("<script"), "{body}");
    }
    let (head, body) = over_tcp(address, &get("/").replace("GET", "HEAD"));
    assert!(head.starts_with("HTTP/1.1 200") && body.is_empty(), "{head}");
    for method in ["POST", "PUT", "DELETE", "OPTIONS"] {
        let (head, _) = over_tcp(address, &get("/").replace("GET", method));
        assert!(head.starts_with("HTTP/1.1 405"), "{method}: {head}");
    }
    let (head, _) = over_tcp(address, &get("/favicon.ico"));
    assert!(head.starts_with("HTTP/1.1 404"), "{head}");
}

/// Passes connections on, and writes down what was asked for.
fn eavesdrop(to: SocketAddr) -> (SocketAddr, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind(free_address()).expect("a port");
    let (address, asked) = (listener.local_addr().expect("bound"), Arc::default());
    let heard: Arc<Mutex<Vec<String>>> = Arc::clone(&asked);
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (Ok(mut stream), heard) = (stream, Arc::clone(&heard)) else { return };
            thread::spawn(move || {
                let mut request = Vec::new();
                let mut byte = [0];
                while !request.ends_with(b"\r\n\r\n") {
                    // A browser opens connections that it may not need.
                    let Ok(1) = stream.read(&mut byte) else { return };
                    request.push(byte[0]);
                }
                let text = String::from_utf8_lossy(&request);
                heard.lock().expect("whole").push(text.lines().next().unwrap_or("").to_owned());
                let mut daemon = TcpStream::connect(to).expect("it listens");
                daemon.write_all(&request).expect("sent");
                let mut answer = Vec::new();
                daemon.read_to_end(&mut answer).expect("answered");
                let _ = stream.write_all(&answer);
            });
        }
    });
    (address, asked)
}

fn chromium() -> Option<PathBuf> {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&paths)
        .flat_map(|path| ["chromium", "chromium-browser", "google-chrome"].map(|it| path.join(it)))
        .find(|path| path.exists());
    if found.is_none() {
        eprintln!("skipped: no chromium; install it (apt-get install chromium)");
    }
    found
}

/// A browser with nothing of anybody's, that reaches this machine only.
fn browse(browser: &Path, directory: &Path, more: &[String], url: &str) -> Output {
    let profile = tempfile::tempdir_in(directory).expect("a directory");
    let mut chromium: Command = command(browser);
    chromium.args([
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--disable-dev-shm-usage",
        "--enable-logging=stderr",
        "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.*",
        "--virtual-time-budget=1500",
        "--hide-scrollbars",
    ]);
    chromium.arg(format!("--user-data-dir={}", profile.path().display()));
    let output = chromium.args(more).arg(url).output().expect("it starts");
    assert!(output.status.success(), "{}", words(&output));
    output
}

#[test]
fn a_browser_shows_the_path_and_its_plan_and_asks_for_nothing_else() {
    let Some(programs) = Programs::find() else { return };
    let Some(browser) = chromium() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let (_pair, address) = busy(&programs, directory.path());
    let (address, asked) = eavesdrop(address);
    let url = format!("http://{address}/");
    let output = browse(&browser, directory.path(), &["--dump-dom".to_owned()], &url);
    let dom = String::from_utf8_lossy(&output.stdout);
    for part in [
        "<h1>alpha</h1>",
        "<li class=\"stage slow\">",
        "bandwidth\">1/G</abbr>",
        "<h2>Its plan: ",
        "<rect class=\"piece\"",
        "measured ",
        "global.staging",
        "<span>beta</span>",
        "Prediction against measurement",
    ] {
        assert!(dom.contains(part), "no {part} in\n{dom}");
    }
    let log = String::from_utf8_lossy(&output.stderr);
    let complaints: Vec<&str> = log.lines().filter(|line| line.contains("CONSOLE")).collect();
    assert!(complaints.is_empty(), "{complaints:#?}");
    let asked: Vec<String> = asked.lock().expect("whole").clone();
    assert!(!asked.is_empty() && asked.iter().all(|it| it == "GET / HTTP/1.1"), "{asked:?}");
    pictures(&browser, directory.path(), &url);
}

/// Wide and narrow, light and dark: it is drawn, and no narrower window cuts it off.
fn pictures(browser: &Path, directory: &Path, url: &str) {
    let kept = std::env::var_os("PIPED_PAGE_SHOTS").map(PathBuf::from);
    for (name, width, scheme) in [("light", 1200, 1), ("dark", 1200, 0), ("narrow", 360, 1)] {
        let picture = directory.join(format!("{name}.png"));
        let options = [
            format!("--screenshot={}", picture.display()),
            format!("--window-size={width},2200"),
            format!("--blink-settings=preferredColorScheme={scheme}"),
        ];
        browse(browser, directory, &options, url);
        let png = eventually("the picture is written", || std::fs::read(&picture).ok());
        assert!(png.starts_with(b"\x89PNG") && png.len() > 10_000, "{name}: {} bytes", png.len());
        if let Some(kept) = &kept {
            std::fs::copy(&picture, kept.join(format!("{name}.png"))).expect("kept");
        }
    }
}
