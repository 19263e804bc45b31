//! Programs that say where nodes are: an etcd and a name server, real ones.

use std::fs;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::http;
use crate::process::{Running, command, eventually, free_address, words};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use rustix::process::Signal;

/// The prefix of keys in tests, which is the default.
pub const PREFIX: &str = "/piped/nodes/";

/// A program of the system; `None`, with the reason printed, where it is not installed.
fn installed(name: &str, package: &str) -> Option<PathBuf> {
    let folders = ["/usr/bin", "/usr/sbin", "/usr/local/bin"];
    let found = folders.iter().map(|it| Path::new(it).join(name)).find(|path| path.exists());
    if found.is_none() {
        eprintln!("skipped: {name} is not installed (package {package})");
    }
    found
}

fn quiet(mut command: Command) -> Running {
    command.stdout(Stdio::null()).stderr(Stdio::null());
    Running(command.spawn().expect("it starts"))
}

/// An etcd of one member, which ends when dropped.
#[derive(Debug)]
pub struct Etcd {
    process: Option<Running>,
    program: PathBuf,
    control: PathBuf,
    directory: PathBuf,
    address: SocketAddr,
    /// Address of its peers, which it has none of.
    peers: SocketAddr,
    /// Certificates, if it is asked over TLS.
    tls: Option<PathBuf>,
}

impl Etcd {
    /// Starts one that anybody may ask, or with certificates in the directory only those that have
    /// one of them. `None`, with the reason printed, where it is not installed.
    ///
    /// # Panics
    /// If it does not serve.
    #[must_use]
    pub fn start(directory: &Path, is_secure: bool) -> Option<Self> {
        let address = free_address();
        let tls = is_secure.then(|| certificates(directory, address.ip()));
        let mut etcd = Self {
            process: None,
            program: installed("etcd", "etcd-server")?,
            control: installed("etcdctl", "etcd-client")?,
            directory: directory.join("etcd"),
            address,
            peers: free_address(),
            tls: match tls {
                Some(made) => Some(made?),
                None => None,
            },
        };
        etcd.run();
        Some(etcd)
    }

    /// Starts it, with what it had.
    ///
    /// # Panics
    /// If it does not serve.
    pub fn run(&mut self) {
        let (url, peers) = (self.url(), format!("http://{}", self.peers));
        let mut etcd = command(&self.program);
        etcd.arg("--data-dir").arg(&self.directory).args(["--name", "one", "--log-level", "error"]);
        etcd.args(["--listen-client-urls", &url, "--advertise-client-urls", &url]);
        etcd.args(["--listen-peer-urls", &peers, "--initial-advertise-peer-urls", &peers]);
        etcd.args(["--initial-cluster", &format!("one={peers}")]);
        if let Some(tls) = &self.tls {
            for (flag, file) in
                [("--cert-file", "pem"), ("--key-file", "key"), ("--trusted-ca-file", "ca")]
            {
                etcd.arg(flag).arg(tls.join(format!("tls.{file}")));
            }
            etcd.arg("--client-cert-auth");
        }
        self.process = Some(quiet(etcd));
        eventually("the etcd serves", || {
            TcpStream::connect(self.address).ok()?;
            let health = self.control(&["endpoint", "health"]).output().expect("it starts");
            health.status.success().then_some(())
        });
    }

    /// Ends it as a crash does.
    pub fn kill(&mut self) {
        drop(self.process.take());
    }

    /// Has it stand still, or go on.
    ///
    /// # Panics
    /// If it does not run.
    pub fn freeze(&self, frozen: bool) {
        let process = self.process.as_ref().expect("it runs");
        if frozen { process.freeze() } else { process.signal(Signal::CONT) }
    }

    /// The address where it serves clients.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// The URL that clients have.
    #[must_use]
    pub fn url(&self) -> String {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://{}", self.address)
    }

    fn control(&self, arguments: &[&str]) -> Command {
        let mut etcdctl = command(&self.control);
        etcdctl.env("ETCDCTL_API", "3").args(["--endpoints", &self.url()]);
        if let Some(tls) = &self.tls {
            for (flag, file) in [("--cert", "pem"), ("--key", "key"), ("--cacert", "ca")] {
                etcdctl.arg(flag).arg(tls.join(format!("tls.{file}")));
            }
        }
        etcdctl.args(arguments);
        etcdctl
    }

    /// Does something as its operator, or as whoever else may write.
    ///
    /// # Panics
    /// If that is refused.
    pub fn ctl(&self, arguments: &[&str]) -> String {
        let output = self.control(arguments).output().expect("it starts");
        assert!(output.status.success(), "{arguments:?}: {}", words(&output));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// What is written of a node.
    ///
    /// # Panics
    /// If it does not say.
    #[must_use]
    pub fn entry(&self, name: &str) -> String {
        self.ctl(&["get", "--print-value-only", &format!("{PREFIX}{name}")]).trim().to_owned()
    }

    /// Writes where a node is.
    ///
    /// # Panics
    /// If that is refused.
    pub fn say(&self, name: &str, address: SocketAddr) {
        let value = format!("{{\"address\": \"{address}\"}}");
        self.ctl(&["put", &format!("{PREFIX}{name}"), &value]);
    }

    /// Writes the same of many nodes at once, at most 128.
    ///
    /// # Panics
    /// If that is refused.
    pub fn put_all(address: SocketAddr, names: impl Iterator<Item = String>, value: &str) {
        let value = BASE64_STANDARD.encode(value);
        let put = |name: String| {
            let key = BASE64_STANDARD.encode(format!("{PREFIX}{name}"));
            serde_json::json!({ "request_put": { "key": key, "value": value } })
        };
        let body = serde_json::json!({ "success": names.map(put).collect::<Vec<_>>() }).to_string();
        let length = body.len();
        let request = format!(
            "POST /v3/kv/txn HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\
             Content-Length: {length}\r\n\r\n{body}"
        );
        let (head, body) = http::over_tcp(address, &request);
        assert!(head.starts_with("HTTP/1.1 200"), "{head}\n{body}");
    }
}

/// Makes an authority, and a certificate of it for an address that serves both sides. `None`, with
/// the reason printed, where nothing makes them.
fn certificates(directory: &Path, address: IpAddr) -> Option<PathBuf> {
    let openssl = installed("openssl", "openssl")?;
    let at = |end: &str| directory.join(format!("tls.{end}")).display().to_string();
    let config = at("cnf");
    let text = format!(
        "[req]\ndistinguished_name = dn\nx509_extensions = ext\nprompt = no\n[dn]\nO = tests\n\
         [ext]\nbasicConstraints = critical,CA:TRUE\n[leaf]\nsubjectAltName = IP:{address}\n\
         basicConstraints = CA:FALSE\nextendedKeyUsage = serverAuth,clientAuth\n"
    );
    fs::write(&config, text).expect("written");
    let run = |arguments: &[&str]| {
        let output = command(&openssl).args(arguments).output().expect("it starts");
        assert!(output.status.success(), "{arguments:?}: {}", words(&output));
    };
    let curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"];
    let (ca, ca_key) = (at("ca"), at("ca.key"));
    let made = ["req", "-x509", "-days", "2", "-config", &config, "-out", &ca, "-keyout", &ca_key];
    run(&[&made[..], &curve].concat());
    let (key, request, leaf) = (at("key"), at("csr"), at("pem"));
    let made = ["req", "-new", "-config", &config, "-out", &request, "-keyout", &key];
    run(&[&made[..], &curve].concat());
    let signed = ["x509", "-req", "-days", "2", "-in", &request, "-CA", &ca, "-CAkey", &ca_key];
    let more = ["-CAcreateserial", "-out", &leaf, "-extfile", &config, "-extensions", "leaf"];
    run(&[&signed[..], &more].concat());
    Some(directory.to_owned())
}

/// A name server with records of a few nodes, which ends when dropped.
#[derive(Debug)]
pub struct NameServer {
    process: Option<Running>,
    program: PathBuf,
    address: SocketAddr,
}

/// The name of the records.
pub const RECORDS: &str = "_piped._tcp.test";

impl NameServer {
    /// A name server that does not run yet. `None`, with the reason printed, where it is not
    /// installed.
    #[must_use]
    pub fn new() -> Option<Self> {
        let program = installed("dnsmasq", "dnsmasq-base")?;
        Some(Self { process: None, program, address: free_address() })
    }

    /// The address where it is asked.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Has it know these nodes and no others; each record may be kept for so many seconds.
    ///
    /// # Panics
    /// If it does not serve.
    pub fn run(&mut self, nodes: &[(&str, SocketAddr)], seconds: u32) {
        drop(self.process.take());
        let mut dnsmasq = command(&self.program);
        dnsmasq.args(["--keep-in-foreground", "--no-resolv", "--no-hosts", "--bind-interfaces"]);
        dnsmasq.args(["--conf-file=/dev/null", "--pid-file=", "--user=root", "--group=root"]);
        dnsmasq.arg(format!("--listen-address={}", self.address.ip()));
        dnsmasq.arg(format!("--port={}", self.address.port()));
        dnsmasq.args([format!("--local-ttl={seconds}"), "--local=/test/".to_owned()]);
        for (name, address) in nodes {
            let (ip, port) = (address.ip(), address.port());
            dnsmasq.arg(format!("--srv-host={RECORDS},{name}.test,{port}"));
            dnsmasq.arg(format!("--host-record={name}.test,{ip},{seconds}"));
        }
        self.process = Some(quiet(dnsmasq));
        eventually("the name server serves", || TcpStream::connect(self.address).ok());
    }

    /// Ends it, as a crash does.
    pub fn kill(&mut self) {
        drop(self.process.take());
    }
}
