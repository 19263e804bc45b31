//! Files of a node as its daemon takes them, at the start and by a reload.

use std::rc::Rc;
use std::sync::Arc;

use piped_config::{Config, Names, NodeKey};
use piped_control::access::Rules;
use piped_control::control::{Control, Live};
use piped_control::grants::{Grants, Root};
use piped_control::keyring::Keyring;
use piped_control::reload::{Next, Outside};

use super::OWN_USER;

/// What a daemon starts with, by its files and its key.
///
/// # Errors
/// Why it would not start.
pub fn live(config: &Config, own: Option<&NodeKey>) -> Result<Live, String> {
    let (rules, keyring, grants, names) = made_of(config, own)?;
    Ok(Live {
        config: Rc::new(config.clone()),
        rules: Rc::new(rules),
        keyring: Rc::new(keyring),
        grants: Arc::new(grants),
        names: Rc::new(names),
    })
}

/// Has a control thread take other files, as the driver of a daemon does.
///
/// # Errors
/// Why it refuses them; nothing has changed.
pub fn reload<M: Clone>(
    control: &mut Control<M>,
    before: &Config,
    after: &Config,
    own: Option<&NodeKey>,
) -> Result<(), String> {
    let (rules, keyring, grants, names) = made_of(after, own)?;
    let (outside, grants) = (&Outside::new(), Arc::new(grants));
    control.check_next(after, &keyring, outside)?;
    control.reload(Next { before, after, outside, rules, keyring, grants, names });
    Ok(())
}

type Made = (Rules, Keyring, Grants, Names);

/// What follows from files and a key.
fn made_of(config: &Config, own: Option<&NodeKey>) -> Result<Made, String> {
    config.validate().map_err(|fault| format!("`{}` {}", fault.key, fault.problem))?;
    let names = Names::default();
    let rules = Rules::new(config, &names, OWN_USER).map_err(|error| error.to_string())?;
    let keyring = Keyring::new(config, own.cloned());
    let keyring = keyring.map_err(|fault| format!("`{}` {}", fault.key, fault.problem))?;
    let mut grants = Grants::default();
    for (name, export) in &config.exports {
        // Another path is another directory.
        let path = export.path.as_os_str().as_encoded_bytes();
        let inode = path.iter().fold(0, |sum, byte| sum * 31 % (1 << 40) + u64::from(*byte));
        let root = Root { device: 1, inode };
        let added = grants.add(name, export, &names, root);
        added.map_err(|(list, error)| format!("exports.{name}.{list}: {error}"))?;
    }
    Ok((rules, keyring, grants, names))
}
