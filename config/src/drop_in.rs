//! Drop-ins that programs write: limits that were changed while running, and the cluster that this
//! node is in.

use toml_edit::{Array, DocumentMut, Item, Table, value};

use crate::cluster::ClusterKey;
use crate::limits::Amount;
use crate::network::HostPort;
use crate::node_key::PublicKey;

/// File name in `conf.d` of what a cluster says.
pub const CLUSTER_DROP_IN: &str = "40-cluster.toml";

const CLUSTER_HEAD: &str = "\
# The cluster that this node is in (`pipectl cluster init`, `piped join`). Without this file it is \
in none.
";

/// Text of the drop-in of a node in a cluster with these keys. `name`: the node's own, if no other
/// file says it. `issuer`: the node that renews its certificate, and its key; none on a node that
/// signs itself, with the key beside the main file.
#[must_use]
pub fn cluster_drop_in(
    keys: &[ClusterKey],
    name: Option<&str>,
    issuer: Option<(&HostPort, PublicKey)>,
) -> String {
    let mut document = DocumentMut::new();
    if let Some(name) = name {
        let mut node = Table::new();
        node.insert("name", value(name));
        document.insert("node", Item::Table(node));
    }
    let mut cluster = Table::new();
    cluster.insert("keys", value(keys.iter().map(ToString::to_string).collect::<Array>()));
    match issuer {
        Some((at, key)) => {
            cluster.insert("issuer", value(at.as_str()));
            cluster.insert("issuer_key", value(key.to_string()));
        }
        None => drop(cluster.insert("signing_key_file", value("auto"))),
    }
    document.insert("cluster", Item::Table(cluster));
    format!("{CLUSTER_HEAD}\n{document}")
}

/// File name in `conf.d`, sorted behind the files that an operator writes by hand.
pub const LIMITS_DROP_IN: &str = "90-limits.toml";

const HEAD: &str = "\
# Limits that were changed while piped ran (`pipectl limits set --persist`). They win over \
piped.toml; remove a
# line, or this file, to have its values again.
";

/// Text of the drop-in with these limits in it. Everything else in `before` is kept.
///
/// # Errors
///
/// `before` is not TOML, or has a value where a table belongs.
pub fn limits_drop_in(before: &str, changed: &[(&str, Amount)]) -> Result<String, String> {
    let mut document: DocumentMut =
        before.parse().map_err(|error: toml_edit::TomlError| error.message().to_owned())?;
    for (key, amount) in changed {
        let Some((scope, kind)) = key.split_once('.') else { continue };
        let limits = table(document.as_table_mut(), "limits")?;
        limits.set_implicit(true);
        let amount = match amount {
            Amount::Bytes(_) | Amount::Memory(_) => value(amount.to_string()),
            Amount::Count(count) => value(i64::from(*count)),
        };
        table(limits, scope)?.insert(kind, amount);
    }
    let text = document.to_string();
    Ok(if before.trim().is_empty() { format!("{HEAD}\n{text}") } else { text })
}

fn table<'a>(parent: &'a mut Table, key: &str) -> Result<&'a mut Table, String> {
    let item = parent.entry(key).or_insert_with(|| Item::Table(Table::new()));
    item.as_table_mut().ok_or_else(|| format!("`{key}` is not a table there"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::Limits;
    use crate::quantity::Bytes;
    use crate::{Input, parse};

    fn limits_of(text: &str) -> Limits {
        let file = Input::File { path: "90-limits.toml".into(), text: text.to_owned() };
        parse(&[file]).expect("a good drop-in").config.limits
    }

    #[test]
    fn what_was_changed_is_there_and_the_rest_is_kept() {
        let staging = ("global.staging", Amount::Bytes(Bytes::mib(128)));
        let first = limits_drop_in("", &[staging]).expect("made");
        assert!(first.starts_with("# ") && first.contains("[limits.global]"), "{first}");
        let requests = ("client.requests", Amount::Count(7));
        let smaller = ("global.staging", Amount::Bytes(Bytes::mib(32)));
        let second =
            limits_drop_in(&format!("{first}# mine\n"), &[requests, smaller]).expect("made");
        let mut expected = Limits::default();
        expected.global.staging = Bytes::mib(32);
        expected.client.requests = 7;
        assert_eq!(limits_of(&second), expected);
        assert!(second.contains("# mine") && second.starts_with("# Limits"), "{second}");
    }

    #[test]
    fn the_drop_in_of_a_cluster_is_what_was_joined() {
        let key = crate::SigningKey::generate().expect("random").public();
        let issuer = crate::NodeKey::generate().expect("random").public();
        let at: HostPort = "10.9.0.1:7440".parse().expect("an address");
        let config = |text: String| {
            let file = Input::File { path: "40-cluster.toml".into(), text };
            parse(&[file]).expect("a good drop-in").config
        };
        let joined = config(cluster_drop_in(&[key], Some("beta"), Some((&at, issuer))));
        assert_eq!((joined.node.name.as_str(), joined.cluster.keys), ("beta", vec![key]));
        assert_eq!((joined.cluster.issuer, joined.cluster.issuer_key), (at, Some(issuer)));
        let first = config(cluster_drop_in(&[key], None, None));
        assert!(first.cluster.signing_key_path(Some("/etc/p/p.toml".as_ref())).is_some());
        assert_eq!((first.node.name.as_str(), first.cluster.issuer_key), ("", None));
    }

    #[test]
    fn what_is_no_configuration_is_left_alone() {
        let requests = [("client.requests", Amount::Count(7))];
        assert!(limits_drop_in("limits = 3\n", &requests).is_err());
        assert!(limits_drop_in("[limits\n", &requests).is_err());
    }
}
