//! Dials: which operators may set them, and which are set.

use std::collections::BTreeSet;

use hyper::StatusCode;
use piped_config::admin::dials::{DialChange, DialClear, Dials};
use piped_core::limits::DIALS_MAX;
use piped_engine::command::Command;
use piped_report::dial::{DialCost, DialPlace, DialReport};

use super::parse::Refused;
use super::routes::tell;
use crate::control::{Control, ShardDoor};
use crate::shard::message::{Message, Question};

pub(super) async fn show(control: &Control) -> Result<Dials<DialReport>, Refused> {
    let mut shards = Vec::with_capacity(control.shards.len());
    for shard in &control.shards {
        shards.push(of_shard(shard).await?);
    }
    // A dial known to one shard is known.
    let known = shards.iter().flatten().filter(|dial| !dial.unknown);
    let known: BTreeSet<String> = known.map(|dial| dial.stage.clone()).collect();
    let several = shards.len() > 1;
    for (index, dials) in shards.iter_mut().enumerate() {
        for dial in dials {
            dial.unknown &= !known.contains(&dial.stage);
            if several {
                dial.stage = format!("shard {index}: {}", dial.stage);
            }
        }
    }
    let dials = shards.into_iter().flatten().collect();
    Ok(Dials { allowed: control.config().planner.allow_dials, dials })
}

pub(super) async fn set(
    control: &Control,
    change: DialChange,
) -> Result<Dials<DialReport>, Refused> {
    if !control.config().planner.allow_dials {
        let text = "dials are off: they make transfers slower on purpose. Set planner.allow_dials \
            = true in the configuration and run `pipectl config reload`";
        return Err(Refused::new(StatusCode::FORBIDDEN, text));
    }
    let places = places(&change.stage)?;
    let DialChange { latency_ns, overhead_ns, per_byte_ps, host_ns, spread, .. } = change;
    let cost = DialCost { latency_ns, overhead_ns, per_byte_ps, host_ns, spread };
    let cost = cost.check().map_err(|fault| Refused::bad(fault.to_string()))?;
    // All shards have the same ones.
    if let Some(shard) = control.shards.first() {
        let there = of_shard(shard).await?;
        let is_new = |place: &&DialPlace| there.iter().all(|dial| dial.stage != place.to_string());
        if there.len() + places.iter().filter(is_new).count() > DIALS_MAX as usize {
            let text = format!("{DIALS_MAX} dials are set, more cannot be: clear one");
            return Err(Refused::new(StatusCode::CONFLICT, text));
        }
    }
    for place in places {
        tracing::warn!(stage = %place, ?cost, "DIALLED: this stage is slower on purpose until its \
            dial is cleared");
        tell(control, Command::SetDial { place, cost }).await?;
    }
    show(control).await
}

pub(super) async fn clear(
    control: &Control,
    clear: DialClear,
) -> Result<Dials<DialReport>, Refused> {
    let places: Vec<Option<DialPlace>> = match &clear.stage {
        Some(stage) => places(stage)?.into_iter().map(Some).collect(),
        None => vec![None],
    };
    if let (Some(stage), Some(shard)) = (&clear.stage, control.shards.first()) {
        let there = of_shard(shard).await?;
        let names: Vec<String> = places.iter().flatten().map(DialPlace::to_string).collect();
        if there.iter().all(|dial| !names.contains(&dial.stage)) {
            let text = format!("no dial is set at {stage}; `pipectl dial` shows those that are");
            return Err(Refused::new(StatusCode::NOT_FOUND, text));
        }
    }
    for place in places {
        tell(control, Command::ClearDials { place }).await?;
    }
    tracing::warn!(stage = clear.stage.as_deref().unwrap_or("all"), "dials cleared");
    show(control).await
}

async fn of_shard(shard: &ShardDoor) -> Result<Vec<DialReport>, Refused> {
    Ok(shard.mailbox.ask(|answer| Message::Ask(Question::Dials(answer))).await?)
}

fn places(stage: &str) -> Result<Vec<DialPlace>, Refused> {
    DialPlace::parse(stage).map_err(|fault| Refused::bad(fault.to_string()))
}
