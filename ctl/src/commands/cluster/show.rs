//! `pipectl cluster show`: what a daemon knows of its cluster.

use piped_config::UnixTime;
use piped_config::admin::cluster::{CLUSTER, ClusterReport, MemberReport};

use crate::admin::Admin;
use crate::commands::words;
use crate::failure::Failure;
use crate::output::{self, Output};
use crate::table::Column::Text;
use crate::units;

pub(super) fn run(admin: &Admin, output: &Output, json: bool) -> Result<(), Failure> {
    if json {
        return output::json(admin.get_raw(CLUSTER)?);
    }
    let report: ClusterReport = admin.get(CLUSTER)?;
    if report.keys.is_empty() {
        let text = "This node is in no cluster: `pipectl cluster init` begins one, `piped join` \
            takes this node into one.";
        return output.prose(text, 0);
    }
    let left = |until: UnixTime| units::uptime(until.since(report.now) as f64);
    let own = match &report.own {
        Some(own) => format!(
            "This node is {}, in groups: {}; its certificate counts for {} more.",
            own.name,
            words::list(&own.groups, "none"),
            left(own.until)
        ),
        None => "This node has no certificate that counts: `piped join` makes one, or \
            `pipectl cluster sign` on a node that signs."
            .to_owned(),
    };
    output.prose(&own, 0)?;
    if let Some(trouble) = &report.trouble {
        output.prose(&format!("It was not renewed: {trouble}"), 0)?;
    } else if report.own.is_some() {
        let renewed = match (report.signs, report.issuer.as_str()) {
            (true, _) => "This node signs, for itself as well.".to_owned(),
            (false, "") => "Nobody renews it: [cluster] issuer is not set.".to_owned(),
            (false, at) => format!("It is renewed at {at}."),
        };
        output.prose(&renewed, 0)?;
    }
    for key in &report.keys {
        output.line(format_args!("cluster key: {key}"))?;
    }
    if report.revoked.is_empty() {
        output.line("revoked keys: none")?;
    } else {
        output.line(format_args!("revoked keys (list {}):", report.revocations))?;
        report.revoked.iter().try_for_each(|key| output.line(format_args!("  {key}")))?;
    }
    output.line("")?;
    if report.members.is_empty() {
        return output.prose("No other node of the cluster was seen yet.", 0);
    }
    let row = |it: &MemberReport| {
        vec![it.name.clone(), words::list(&it.groups, "none"), left(it.until), it.key.to_string()]
    };
    let columns = ["NODE", "GROUPS", "COUNTS FOR", "KEY"].map(Text);
    output.table(&columns, report.members.iter().map(row).collect())
}
