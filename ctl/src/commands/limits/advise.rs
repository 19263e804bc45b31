//! `pipectl limits advise`: the size that the unexpected-message buffer should have, from the
//! messages seen, and why.

use clap::Args;
use piped_config::admin::advice::{ADVICE, Advice, AdvisedLimit, ChannelAdvice, SenderAdvice};

use super::{amount_of, set};
use crate::admin::Admin;
use crate::failure::{Exit, Failure};
use crate::output::{self, Output};
use crate::table::Column::{Number, Text};
use crate::units;

/// Arguments of `pipectl limits advise`.
#[derive(Debug, Clone, Args)]
pub(super) struct AdviseArgs {
    /// Set global.early_arrival and client.early_arrival to what is required
    #[arg(long)]
    apply: bool,
    /// Keep them for the next start too, in a drop-in of the configuration
    #[arg(long, requires = "apply")]
    persist: bool,
}

pub(super) fn run(
    admin: &Admin,
    output: &Output,
    args: &AdviseArgs,
    json: bool,
) -> Result<(), Failure> {
    if !args.apply {
        return match json {
            true => output::json(admin.get_raw(ADVICE)?),
            false => show(output, &admin.get(ADVICE)?),
        };
    }
    let advice: Advice = admin.get(ADVICE)?;
    let settings = settings(&advice).ok_or_else(|| {
        Failure::new(Exit::NotFound, format!("{}; nothing was set", none(&advice)))
    })?;
    set(admin, output, &settings, args.persist, json)?;
    let kept = "Not all messages are remembered, so no limit was lowered.".to_owned();
    let told = [too_little_staging(&advice), is_part(&advice).then_some(kept)];
    told.iter().flatten().filter(|_| !json).try_for_each(|text| output.prose(text, 0))
}

/// Settings to make; none if no messages were seen.
fn settings(advice: &Advice) -> Option<Vec<(String, String)>> {
    let setting = |limit: &AdvisedLimit| {
        let required = limit.required_bytes?;
        // Messages that are not known may need more than those that are.
        let least = if is_part(advice) { limit.configured_bytes } else { 0 };
        Some((limit.name.clone(), format!("{}B", required.max(least))))
    };
    advice.limits.iter().map(setting).collect()
}

/// Whether some of the messages are not known.
fn is_part(advice: &Advice) -> bool {
    advice.unseen > 0 || advice.channels.iter().any(|channel| channel.is_cut)
}

fn none(advice: &Advice) -> String {
    match advice.unseen {
        0 => "no messages were seen: nobody has received one on a channel of this node that was \
            short enough to be sent at once"
            .to_owned(),
        _ => "no messages were seen of the channels that are remembered".to_owned(),
    }
}

fn show(output: &Output, advice: &Advice) -> Result<(), Failure> {
    if advice.channels.is_empty() {
        return output.prose(&format!("{}.", capitalized(&none(advice))), 0);
    }
    let row = |limit: &AdvisedLimit| {
        vec![
            limit.name.clone(),
            limit.required_bytes.map_or_else(|| "-".to_owned(), units::bytes),
            units::bytes(limit.configured_bytes),
            units::bytes(limit.high_bytes),
        ]
    };
    let columns = [Text("LIMIT"), Number("REQUIRED"), Number("CONFIGURED"), Number("MOST")];
    output.table(&columns, advice.limits.iter().map(row).collect())?;
    output.heading("Channels")?;
    let configured = advice.limits.iter().find(|limit| limit.name == "client.early_arrival");
    let configured = configured.map_or(0, |limit| limit.configured_bytes);
    let row = |channel: &ChannelAdvice| {
        vec![
            name_of(channel),
            units::bytes(channel.required_bytes),
            units::bytes(configured),
            units::bytes(channel.high_bytes),
            units::count(channel.stalled),
            units::count(channel.messages),
        ]
    };
    let columns = [
        Text("CHANNEL"),
        Number("REQUIRED"),
        Number("CONFIGURED"),
        Number("MOST"),
        Number("STALLED"),
        Number("MESSAGES"),
    ];
    output.table(&columns, advice.channels.iter().map(row).collect())?;
    output.prose(
        "REQUIRED: 99 of 100 messages came in bursts that fit. STALLED: messages that found no \
         memory; they count as if they had.",
        0,
    )?;
    advice.channels.iter().try_for_each(|channel| explain(output, channel))?;
    let rest = [too_little_staging(advice), unseen(advice)];
    rest.iter().flatten().try_for_each(|text| output.prose(&format!("\n{text}"), 0))
}

/// Explains why a channel needs that much.
fn explain(output: &Output, channel: &ChannelAdvice) -> Result<(), Failure> {
    output.heading(&name_of(channel))?;
    output.prose(&measured(channel), 2)?;
    output.prose(&parts(channel), 2)?;
    if channel.is_cut {
        output.prose(
            "its longest burst has more messages than are remembered: it may need more than this",
            2,
        )?;
    }
    let row = |factor: &str, bytes: u64| {
        let change = bytes as i64 - channel.required_bytes as i64;
        let sign = if change < 0 { "-" } else { "+" };
        let change = match change {
            0 => "0".to_owned(),
            _ => format!("{sign}{}", units::bytes(change.unsigned_abs())),
        };
        vec![factor.to_owned(), units::bytes(bytes), change]
    };
    let factors = channel.factors.iter();
    let rows = factors.map(|it| row(words(&it.factor), it.required_bytes)).collect();
    output.table(&[Text("  IF"), Number("REQUIRED"), Number("CHANGE")], rows)
}

/// Describes the measured messages of a channel.
fn measured(channel: &ChannelAdvice) -> String {
    let it = channel.measured;
    let rate = |rate: Option<f64>, none: &str| rate.map_or_else(|| none.to_owned(), units::rate);
    format!(
        "seen: {:.1} messages of {} in a burst ({} such), one every {}; each arrives at {}, waits \
         {} for its receiver, and is copied at {}",
        it.messages,
        units::bytes(it.bytes.round() as u64),
        units::count(channel.bursts),
        units::seconds(it.delay_seconds),
        rate(it.arrival_rate, "once"),
        units::seconds(it.startup_seconds),
        rate(it.copy_rate, "a rate that was not measured"),
    )
}

/// Describes the parts of a channel's requirement.
fn parts(channel: &ChannelAdvice) -> String {
    let bytes = units::bytes;
    let mut text = format!(
        "required: {} arrived and not copied, {} because messages have their memory whole, {} for \
         whole granules",
        bytes(channel.model_bytes),
        bytes(channel.whole_bytes),
        bytes(channel.rounding_bytes)
    );
    if channel.sharing_bytes > 0 {
        text += &format!(", {} that short messages share", bytes(channel.sharing_bytes));
    }
    let senders: Vec<String> = channel.senders.iter().map(sender).collect();
    text + &format!(
        "; no less than {}, one message of each sender ({})",
        bytes(channel.fixed_bytes),
        senders.join(", ")
    )
}

fn sender(sender: &SenderAdvice) -> String {
    let name = sender.peer.as_deref().unwrap_or("this node");
    format!("{name} {}", units::bytes(sender.fixed_bytes))
}

fn words(factor: &str) -> &str {
    match factor {
        "bandwidth_doubled" => "  bandwidth doubled",
        "delay_doubled" => "  delay doubled",
        "copy_rate_doubled" => "  copy rate doubled",
        "no_startup" => "  no start-up",
        "half_more_messages" => "  half as many messages more",
        other => other,
    }
}

fn name_of(channel: &ChannelAdvice) -> String {
    channel.name.clone().unwrap_or_else(|| format!("#{} (closed)", channel.channel))
}

fn too_little_staging(advice: &Advice) -> Option<String> {
    let needed = advice.limits.iter().filter_map(|limit| limit.required_bytes).max()?;
    (needed > advice.most_bytes).then(|| {
        format!(
            "Of global.staging no more than a quarter is for early messages, {} now: {} of it are \
             needed for what is required (`pipectl limits set global.staging=...`).",
            amount_of(advice.most_bytes, true),
            units::bytes(4 * needed)
        )
    })
}

fn unseen(advice: &Advice) -> Option<String> {
    (advice.unseen > 0).then(|| {
        format!(
            "{} messages were on channels beyond those that are remembered: what they need is not \
             in this.",
            units::count(advice.unseen)
        )
    })
}

fn capitalized(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

#[cfg(test)]
mod tests {
    use piped_config::admin::advice::{FactorAdvice, Measured};

    use super::*;

    fn advice(required: Option<u64>) -> Advice {
        let limit = |name: &str| AdvisedLimit {
            name: name.to_owned(),
            required_bytes: required,
            configured_bytes: 8 << 20,
            high_bytes: 1 << 20,
        };
        Advice {
            limits: ["global.early_arrival", "client.early_arrival"].map(limit).into(),
            most_bytes: 16 << 20,
            stalled: 0,
            unseen: 0,
            channels: Vec::new(),
        }
    }

    fn channel() -> ChannelAdvice {
        let sender = |peer: Option<&str>| SenderAdvice {
            peer: peer.map(str::to_owned),
            messages: 64,
            fixed_bytes: 65_536,
        };
        ChannelAdvice {
            name: None,
            channel: 7,
            session: 1,
            shard: 0,
            required_bytes: 2 << 20,
            model_bytes: 1_900_000,
            whole_bytes: 90_000,
            rounding_bytes: 107_152,
            sharing_bytes: 0,
            fixed_bytes: 131_072,
            high_bytes: 0,
            messages: 64,
            stalled: 3,
            is_cut: false,
            senders: vec![sender(Some("beta")), sender(None)],
            bursts: 1,
            measured: Measured {
                messages: 4.0,
                bytes: 64_000.0,
                copy_rate: Some(91e6),
                ..Measured::default()
            },
            factors: vec![FactorAdvice {
                factor: "no_startup".to_owned(),
                required_bytes: 1 << 20,
            }],
        }
    }

    #[test]
    fn what_is_required_is_set_to_the_byte() {
        let set = settings(&advice(Some(2_097_152))).expect("messages were seen");
        let expected = ["global", "client"]
            .map(|scope| (format!("{scope}.early_arrival"), "2097152B".to_owned()));
        assert_eq!(set, expected);
        for (key, value) in set {
            super::super::setting(&format!("{key}={value}")).expect("a limit");
        }
        assert_eq!(settings(&advice(None)), None);
        assert!(none(&advice(None)).starts_with("no messages were seen: "));
    }

    #[test]
    fn what_is_not_known_lowers_no_limit() {
        let unseen = Advice { unseen: 1, ..advice(Some(65_536)) };
        let cut = ChannelAdvice { is_cut: true, ..channel() };
        let cut = Advice { channels: vec![cut], ..advice(Some(65_536)) };
        for advice in [unseen, cut] {
            let set = settings(&advice).expect("messages were seen");
            for ((_, value), limit) in set.into_iter().zip(&advice.limits) {
                assert_eq!(value, format!("{}B", limit.configured_bytes.max(65_536)));
                assert!(limit.configured_bytes > 65_536);
            }
        }
    }

    #[test]
    fn staging_that_is_too_small_for_it_is_told() {
        assert_eq!(too_little_staging(&advice(Some(16 << 20))), None);
        assert_eq!(too_little_staging(&advice(None)), None);
        let text = too_little_staging(&advice(Some(17 << 20))).expect("too small");
        assert!(text.contains("68 MiB") && text.contains("16 MiB now"), "{text}");
    }

    #[test]
    fn each_part_and_each_sender_is_named() {
        let channel = channel();
        let text = parts(&channel);
        for part in ["1.81 MiB arrived", "beta 64 KiB", "this node 64 KiB", "no less than 128 KiB"]
        {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!text.contains("share"), "{text}");
        let text = measured(&channel);
        assert!(text.starts_with("seen: 4.0 messages of 62.5 KiB in a burst (1 such)"), "{text}");
        assert!(text.contains("arrives at once") && text.contains("86.8 MiB/s"), "{text}");
        assert_eq!(name_of(&channel), "#7 (closed)");
        for factor in
            ["bandwidth_doubled", "delay_doubled", "copy_rate_doubled", "half_more_messages"]
        {
            assert!(!words(factor).contains('_'), "{factor}");
        }
    }
}
