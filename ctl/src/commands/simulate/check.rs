//! Contradictions of a scenario, reported before anything runs: the engine would take one of two
//! entries and the model the other.

use std::collections::BTreeMap;

use piped_config::check_planner_mode;
use piped_report::dial::DialPlace;

use super::scenario::{Dial, Scenario, Transfer};

/// # Errors
/// The first entry that is wrong, and why.
pub(super) fn check(scenario: &Scenario) -> Result<(), String> {
    disks(scenario)?;
    links(scenario)?;
    dials(scenario)?;
    transfers(scenario)
}

fn disks(scenario: &Scenario) -> Result<(), String> {
    for (name, node) in &scenario.nodes {
        for (disk, said) in &node.disks {
            let at = |error| format!("disk {name}:{disk}: {error}");
            said.stage().map_err(at)?;
            said.spread().map_err(at)?;
            if said.window == Some(0) {
                return Err(at(
                    "window = 0 lets nothing in: leave it out, or give 1 or more".to_owned()
                ));
            }
        }
    }
    Ok(())
}

fn links(scenario: &Scenario) -> Result<(), String> {
    let mut seen = BTreeMap::new();
    for (number, link) in scenario.links.iter().enumerate() {
        let [one, other] = &link.nodes;
        let at = |error| format!("link {} ({one} - {other}): {error}", number + 1);
        link.nodes.iter().try_for_each(|node| is_node(scenario, node)).map_err(at)?;
        if one == other {
            return Err(at("it joins a node with itself: name two nodes".to_owned()));
        }
        link.stage().map_err(at)?;
        once(&mut seen, (one.min(other), one.max(other), link.is_second()), "link", number)
            .map_err(at)?;
    }
    Ok(())
}

fn dials(scenario: &Scenario) -> Result<(), String> {
    let mut seen = BTreeMap::new();
    for (number, dial) in scenario.dials.iter().enumerate() {
        let at = |error| format!("dial {} ({} at {}): {error}", number + 1, dial.stage, dial.node);
        is_node(scenario, &dial.node).map_err(at)?;
        let places = places(scenario, dial).map_err(at)?;
        dial.cost().map_err(at)?;
        for place in places {
            once(&mut seen, (&dial.node, place), "dial", number).map_err(at)?;
        }
    }
    Ok(())
}

/// The stages that a dial slows down; reads and writes of a disk are two.
fn places(scenario: &Scenario, dial: &Dial) -> Result<Vec<String>, String> {
    if let Some((disk, ways)) = dial.disk()? {
        is_disk(scenario, &dial.node, disk)?;
        return Ok(ways.iter().map(|write| format!("disk:{disk}:{write}")).collect());
    }
    let places = DialPlace::parse(&dial.stage).map_err(|fault| fault.to_string())?;
    for place in &places {
        let (DialPlace::Send { peer } | DialPlace::Net { peer } | DialPlace::Receive { peer }) =
            place
        else {
            continue;
        };
        is_node(scenario, peer)?;
        if *peer == dial.node {
            return Err(format!("{peer} is no peer of itself: name another node"));
        }
    }
    Ok(places.iter().map(ToString::to_string).collect())
}

fn transfers(scenario: &Scenario) -> Result<(), String> {
    let mut seen = BTreeMap::new();
    for (number, one) in scenario.transfers.iter().enumerate() {
        let title = one.title(number);
        let at = |error| match &one.name {
            Some(name) => format!("transfer {} ({name}): {error}", number + 1),
            None => format!("transfer {}: {error}", number + 1),
        };
        transfer(scenario, one).map_err(at)?;
        once(&mut seen, title, "transfer", number).map_err(at)?;
    }
    Ok(())
}

fn transfer(scenario: &Scenario, transfer: &Transfer) -> Result<(), String> {
    transfer.bytes()?;
    transfer.count()?;
    transfer.at_once()?;
    transfer.plan()?;
    check_planner_mode(transfer.planner).map_err(|error| format!("planner {error}"))?;
    is_node(scenario, &transfer.node)?;
    for end in transfer.ends()? {
        match end.split_once(':') {
            Some((node, disk)) => is_disk(scenario, node, disk)?,
            None => is_node(scenario, end)?,
        }
    }
    Ok(())
}

/// Notes an entry. A second one for the same thing is a mistake, because either might count.
fn once<K: Ord>(
    seen: &mut BTreeMap<K, usize>,
    key: K,
    kind: &str,
    number: usize,
) -> Result<(), String> {
    match seen.insert(key, number) {
        None => Ok(()),
        Some(first) => Err(format!("{kind} {} is the same one: leave one of them out", first + 1)),
    }
}

fn is_node(scenario: &Scenario, name: &str) -> Result<(), String> {
    let all = || scenario.nodes.keys().cloned().collect::<Vec<_>>().join(", ");
    match scenario.nodes.contains_key(name) {
        true => Ok(()),
        false => Err(format!("there is no node `{name}`: there are {}", all())),
    }
}

fn is_disk(scenario: &Scenario, node: &str, disk: &str) -> Result<(), String> {
    is_node(scenario, node)?;
    match scenario.nodes[node].disks.contains_key(disk) {
        true => Ok(()),
        false => Err(format!("{node} has no disk `{disk}`")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::scenario;
    use super::*;

    const NODES: &str = "[nodes.a.disks.d]\ng = '1ms'\n[nodes.b]\n";
    const LINK: &str = "[[links]]\nnodes = ['a', 'b']\nG = '1MB/s'\n";
    const READ: &str = "[[transfers]]\nnode = 'a'\nread = 'a:d'\nbytes = 4096\n";

    fn checked(text: &str) -> Result<(), String> {
        check(&scenario::parse(text)?)
    }

    fn dial(node: &str, stage: &str) -> String {
        format!("[[dials]]\nnode = '{node}'\nstage = '{stage}'\ng = '1us'\n")
    }

    #[test]
    fn what_contradicts_itself_is_refused_with_the_entry() {
        let again = LINK.replace("'a', 'b'", "'b', 'a'");
        for (more, hint) in [
            (format!("{LINK}{again}"), "link 2 (b - a): link 1 is the same one"),
            (LINK.replace("'b'", "'a'"), "link 1 (a - a): it joins a node with itself"),
            (LINK.replace("'b'", "'c'"), "link 1 (a - c): there is no node `c`"),
            (dial("a", "check").repeat(2), "dial 2 (check at a): dial 1 is the same one"),
            (dial("a", "disk:d") + &dial("a", "disk:d:read"), "dial 1 is the same one"),
            (dial("a", "disk:e"), "a has no disk `e`"),
            (dial("a", "send:nobody"), "dial 1 (send:nobody at a): there is no node `nobody`"),
            (dial("a", "net:a"), "no peer of itself"),
            (dial("c", "check"), "no node `c`"),
        ] {
            let said = checked(&format!("{NODES}{more}{READ}")).expect_err(&more);
            assert!(said.contains(hint), "{more}: {said}");
        }
        let window = NODES.replace("g = '1ms'", "window = 0");
        let said = checked(&format!("{window}{READ}")).expect_err("nothing gets in");
        assert!(said.contains("disk a:d: window = 0"), "{said}");
    }

    #[test]
    fn what_is_not_the_same_is_not_refused() {
        let dials = [("a", "disk:d:read"), ("a", "disk:d:write"), ("a", "check"), ("b", "check")];
        let dials: String = dials.map(|(node, stage)| dial(node, stage)).concat();
        assert_eq!(checked(&format!("{NODES}{LINK}{dials}{READ}{READ}")), Ok(()));
    }

    #[test]
    fn the_last_transfer_is_read_before_the_first_runs() {
        for (last, hint) in [
            (READ.replace("a:d", "a:e"), "transfer 2: a has no disk `e`"),
            (format!("{READ}planner = 'fixed:1'\n"), "transfer 2: planner is fixed:1"),
            (format!("{READ}planner = 'fixed:64TiB'\n"), "choose a size from"),
            (format!("{READ}name = 'transfer 1'\n"), "(transfer 1): transfer 1 is the same one"),
        ] {
            let said = checked(&format!("{NODES}{READ}{last}")).expect_err(&last);
            assert!(said.contains(hint), "{last}: {said}");
        }
    }
}
