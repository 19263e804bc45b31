//! Two hosts on one machine: network namespaces, and a cable between them.

use std::io::Write as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::process::{Daemon, Programs, command, words};

/// Two namespaces with a cable. Taken down when dropped, and also when this process dies.
#[derive(Debug)]
pub struct Cable {
    names: [String; 2],
    /// Waits for the end of its input, which is our end, and cleans up.
    cleaner: Child,
}

impl Cable {
    /// `None`, with the reason printed, where there can be none. The ends are 10.77.0.1 and
    /// 10.77.0.2.
    ///
    /// # Panics
    /// If there is no shell.
    #[must_use]
    pub fn up(tag: &str) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: namespaces need root");
            return None;
        }
        let names = ["a", "b"].map(|end| format!("piped-{tag}-{}-{end}", std::process::id()));
        let [a, b] = &names;
        let script = format!(
            "trap '' INT TERM; read -r _; for n in {a} {b}; do ip netns pids $n 2>/dev/null | \
             xargs -r kill -9; ip netns del $n 2>/dev/null; done"
        );
        let mut cleaner = Command::new("sh");
        cleaner.args(["-c", &script]).stdin(Stdio::piped());
        let make = [
            format!("netns add {a}"),
            format!("netns add {b}"),
            format!("-n {a} link add cable type veth peer name cable netns {b}"),
            format!("-n {a} addr add 10.77.0.1/24 dev cable"),
            format!("-n {b} addr add 10.77.0.2/24 dev cable"),
            format!("-n {a} link set lo up"),
            format!("-n {b} link set lo up"),
            format!("-n {a} link set cable up"),
            format!("-n {b} link set cable up"),
        ];
        let net = Self { cleaner: cleaner.spawn().expect("a shell"), names };
        for step in &make {
            if let Err(reason) = net.try_ip(step) {
                eprintln!("skipped: ip {step}: {reason}");
                return None;
            }
        }
        Some(net)
    }

    fn try_ip(&self, arguments: &str) -> Result<(), String> {
        let output = Command::new("ip").args(arguments.split(' ')).output();
        match output {
            Ok(output) if output.status.success() => Ok(()),
            Ok(output) => Err(words(&output).trim().to_owned()),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Changes something at an end.
    ///
    /// # Panics
    /// If `ip` refuses.
    pub fn ip(&self, end: usize, arguments: &str) {
        self.try_ip(&format!("-n {} {arguments}", self.names[end])).expect("it worked before");
    }

    /// Makes both directions as slow as `rate` says to `tc`: `"6mbit"`.
    ///
    /// # Errors
    /// What `tc` says.
    pub fn slow(&self, rate: &str) -> Result<(), String> {
        for name in &self.names {
            let queue = format!(
                "-n {name} qdisc replace dev cable root tbf rate {rate} burst 16kb latency 400ms"
            );
            let output = Command::new("tc").args(queue.split(' ')).output();
            match output {
                Ok(output) if output.status.success() => {}
                Ok(output) => return Err(words(&output).trim().to_owned()),
                Err(error) => return Err(error.to_string()),
            }
        }
        Ok(())
    }

    /// Bytes that an end has sent, heads of packets included.
    ///
    /// # Panics
    /// If `ip` does not know.
    #[must_use]
    pub fn sent(&self, end: usize) -> u64 {
        let mut command = Command::new("ip");
        command.args(["-n", &self.names[end], "-j", "-s", "link", "show", "cable"]);
        let output = command.output().expect("it worked before");
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        report[0]["stats64"]["tx"]["bytes"].as_u64().expect("a number")
    }

    /// A program at an end, to be started.
    #[must_use]
    pub fn inside(&self, end: usize, program: &Path) -> Command {
        let mut inside = command(Path::new("ip"));
        inside.args(["netns", "exec", &self.names[end]]).arg(program);
        inside
    }

    /// A daemon at an end.
    #[must_use]
    pub fn daemon(
        &self,
        end: usize,
        programs: &Programs,
        directory: &Path,
        name: &str,
        more: &str,
    ) -> Daemon {
        Daemon::start_by(self.inside(end, &programs.piped), programs, directory, name, more)
    }
}

impl Drop for Cable {
    fn drop(&mut self) {
        if let Some(mut input) = self.cleaner.stdin.take() {
            let _ = input.write_all(b"\n");
        }
        let _ = self.cleaner.wait();
    }
}
