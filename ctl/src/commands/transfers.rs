//! `pipectl transfers`: transfers that run now, or that ended last.

use clap::Args as ClapArgs;
use piped_config::admin::watch::{TRANSFERS, TRANSFERS_ENDED, TransferEntry, Transfers};
use piped_report::shard::TransferReport;

use crate::admin::Admin;
use crate::commands::words;
use crate::failure::Failure;
use crate::output::{self, Output};
use crate::table::Column::{Number, Text};
use crate::units;

/// Arguments of `pipectl transfers`.
#[derive(Debug, Clone, ClapArgs)]
pub(crate) struct TransfersArgs {
    /// Show the last that ended instead, the latest first; `explain ID` tells more of one
    #[arg(long)]
    ended: bool,
}

pub(crate) fn run(
    admin: &Admin,
    output: &Output,
    args: &TransfersArgs,
    json: bool,
) -> Result<(), Failure> {
    let path = if args.ended { TRANSFERS_ENDED } else { TRANSFERS };
    if json {
        return output::json(admin.get_raw(path)?);
    }
    let Transfers::<TransferReport> { total, transfers } = admin.get(path)?;
    if transfers.is_empty() {
        let none = match args.ended {
            true => "No transfer has ended since the daemon started.",
            false => "Nothing runs now (--ended shows the last that ended).",
        };
        return output.prose(none, 0);
    }
    let (time, end) = match args.ended {
        true => ("TOOK", "STATUS"),
        false => ("AGE", "LEFT"),
    };
    output.table(
        &[
            Number("ID"),
            Text("OPERATION"),
            Text("CLASS"),
            Text("OF"),
            Number("DONE"),
            Number("BYTES"),
            Number(time),
            Text(end),
            Text("ROUTE"),
        ],
        transfers.iter().map(row).collect(),
    )?;
    let listed = transfers.len() as u32;
    if total > listed {
        output.line(format_args!("... and {} more", total - listed))?;
    }
    Ok(())
}

fn row(TransferEntry { transfer: it, .. }: &TransferEntry<TransferReport>) -> Vec<String> {
    let serve = if it.served { "serve " } else { "" };
    let end = match (it.left_seconds, it.status) {
        // The client has its answer, and its buffer is held.
        (Some(_), Some(status)) => format!("held: {}", words::status(status)),
        (Some(left), None) if left < 0.0 => "overdue".to_owned(),
        (Some(left), None) => units::seconds(left),
        (None, Some(status)) => words::status(status),
        (None, None) => "-".to_owned(),
    };
    vec![
        if it.id > 0 { it.id.to_string() } else { "-".to_owned() },
        format!("{serve}{}", it.operation.name()),
        words::class(it.class).to_owned(),
        it.session.map_or_else(|| "a peer".to_owned(), |session| format!("session {session}")),
        units::bytes(it.bytes_done),
        units::bytes(it.bytes),
        units::seconds(it.age_seconds),
        end,
        it.route.clone(),
    ]
}

#[cfg(test)]
mod tests {
    use piped_core::request::Class;
    use piped_core::status::Status;
    use piped_report::tally::Operation;

    use super::*;

    #[test]
    fn the_end_of_a_transfer_is_said_whatever_it_is() {
        let transfer = TransferReport {
            id: 7,
            operation: Operation::Put,
            served: false,
            route: "client memory -> lane -> peer".to_owned(),
            class: Class::Bulk,
            session: Some(3),
            bytes: 1 << 20,
            bytes_done: 1 << 19,
            age_seconds: 0.5,
            left_seconds: Some(29.5),
            ended_seconds_ago: None,
            status: None,
            retries: 0,
        };
        let end = |left_seconds, status| {
            let transfer = TransferReport { left_seconds, status, ..transfer.clone() };
            row(&TransferEntry { shard: 0, transfer })[7].clone()
        };
        assert_eq!(end(Some(29.5), None), "29.5 s");
        assert_eq!(end(Some(-1.0), None), "overdue");
        assert_eq!(end(Some(-1.0), Some(Status::DeadlineExceeded)), "held: deadline exceeded");
        assert_eq!(end(None, Some(Status::Ok)), "ok");
        let entry = TransferEntry { shard: 0, transfer: transfer.clone() };
        assert_eq!(row(&entry)[..4], ["7", "put", "bulk", "session 3"]);
        let served = TransferReport { id: 0, served: true, session: None, ..transfer };
        let entry = TransferEntry { shard: 0, transfer: served };
        assert_eq!(row(&entry)[..4], ["-", "serve put", "bulk", "a peer"]);
    }
}
