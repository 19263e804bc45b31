//! `pipectl nodes`: nodes that sources of discovery name, and whether this node dials them.

use piped_config::admin::nodes::{NODES, Nodes};

use crate::admin::Admin;
use crate::commands::words;
use crate::failure::Failure;
use crate::output::{self, Output};
use crate::table::Column::Text;
use crate::units;

pub(crate) fn run(admin: &Admin, output: &Output, json: bool) -> Result<(), Failure> {
    if json {
        return output::json(admin.get_raw(NODES)?);
    }
    let Nodes { sources, nodes } = admin.get(NODES)?;
    if sources.is_empty() {
        let text = "No source of discovery has spoken: [discovery] names them. Peers are where \
            [peers.NAME] says.";
        return output.prose(text, 0);
    }
    if !nodes.is_empty() {
        let rows = nodes.iter().map(|node| {
            vec![
                node.node.clone(),
                node.address.clone(),
                node.source.clone(),
                if node.dialled { "yes" } else { "no" }.to_owned(),
                words::list(&node.exports, "not told"),
                node.version.clone(),
                node.load_percent.map_or_else(String::new, |load| format!("{load} %")),
            ]
        });
        let columns =
            ["NODE", "ADDRESS", "SOURCE", "DIALLED", "EXPORTS", "VERSION", "LOAD"].map(Text);
        output.table(&columns, rows.collect())?;
        output.line("")?;
    }
    for source in &sources {
        let ago = units::uptime(source.heard_seconds_ago);
        let state = match &source.away {
            Some(why) => format!("away ({why}); last heard {ago} ago, what it said stays"),
            None => format!("{} nodes, heard {ago} ago", source.nodes),
        };
        output.prose(&format!("{}: {state}", source.source), 0)?;
        if source.left_out > 0 {
            output.prose(&format!("{} more than the limit are left out", source.left_out), 2)?;
        }
    }
    Ok(())
}
