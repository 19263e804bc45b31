//! placeholder
#![forbid(unsafe_code)]

use system_tests::container::Container;

#[test]
fn boots() {
    let Some(container) = Container::boot() else { return };
    eprintln!("{}", container.succeed(&["systemctl", "list-units", "--failed"]));
    eprintln!("{}", container.succeed(&["systemd-analyze", "time"]));
    eprintln!("{}", container.succeed(&["ps", "axf"]));
    container.end();
}
