//! A layer that escapes every text of an event, in front of another layer.

use std::fmt;

use piped_text::shown;
use tracing::field::{Field, Value, Visit, display};
use tracing::{Event, Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

/// Escapes events for the layer behind it, which learns of no spans, because there are none here.
#[derive(Debug)]
pub(super) struct Escaping<L> {
    inner: L,
}

impl<L> Escaping<L> {
    pub(super) const fn new(inner: L) -> Self {
        Self { inner }
    }
}

impl<S: Subscriber, L: Layer<S>> Layer<S> for Escaping<L> {
    fn on_register_dispatch(&self, subscriber: &tracing::Dispatch) {
        self.inner.on_register_dispatch(subscriber);
    }

    fn on_layer(&mut self, subscriber: &mut S) {
        self.inner.on_layer(subscriber);
    }

    fn enabled(&self, metadata: &Metadata<'_>, context: Context<'_, S>) -> bool {
        self.inner.enabled(metadata, context)
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut values = Values::default();
        event.record(&mut values);
        let metadata = event.metadata();
        let of =
            |field| values.0.iter().find(|(other, _)| *other == field).map(|(_, it)| it.value());
        let all: Vec<Option<&dyn Value>> = metadata.fields().iter().map(of).collect();
        let fields = metadata.fields().value_set_all(&all);
        self.inner.on_event(&Event::new(metadata, &fields), context);
    }
}

/// Values of an event.
#[derive(Default)]
struct Values(Vec<(Field, Box<dyn Kept>)>);

/// A value that outlives its event.
trait Kept {
    fn value(&self) -> &dyn Value;
}

impl<T: Value> Kept for T {
    fn value(&self) -> &dyn Value {
        self
    }
}

impl Values {
    fn keep(&mut self, field: &Field, value: impl Kept + 'static) {
        self.0.push((field.clone(), Box::new(value)));
    }
}

impl Visit for Values {
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.keep(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.keep(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.keep(field, value);
    }

    fn record_i128(&mut self, field: &Field, value: i128) {
        self.keep(field, value);
    }

    fn record_u128(&mut self, field: &Field, value: u128) {
        self.keep(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.keep(field, value);
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.keep(field, shown(value).into_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.keep(field, display(shown(&format!("{value:?}")).into_owned()));
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::{Arc, Mutex};

    use tracing_subscriber::layer::SubscriberExt as _;
    use tracing_subscriber::{fmt, registry};

    use super::*;

    #[derive(Debug, Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Written {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().expect("whole").extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Fields as the journal takes them: text as text, all else as it is displayed.
    #[derive(Debug, Clone, Default)]
    struct Fields(Arc<Mutex<Vec<(String, String)>>>);

    impl<S: Subscriber> Layer<S> for Fields {
        fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
            event.record(&mut self.clone());
        }
    }

    impl Visit for Fields {
        fn record_str(&mut self, field: &Field, value: &str) {
            self.0.lock().expect("whole").push((field.to_string(), value.to_owned()));
        }

        fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
            self.0.lock().expect("whole").push((field.to_string(), format!("{value:?}")));
        }
    }

    const HOSTILE: &str = "x\u{1b}[2J\r\n2026-01-01 ERROR piped: forged\u{9b}1m\u{202e}\u{7f}";

    fn log_hostile() {
        let peer = String::from("beta");
        tracing::info!(
            peer,
            name = HOSTILE,
            fault = %HOSTILE,
            debug = ?(HOSTILE,),
            left_out = 3_u64,
            good = true,
            "said: {HOSTILE}"
        );
    }

    fn is_clean(text: &str) -> bool {
        !text.chars().any(|it| it.is_control() || it == '\u{202e}')
    }

    #[test]
    fn a_hostile_name_is_one_line_of_text_on_stderr() {
        let written = Written::default();
        let writer = written.clone();
        let text = fmt::layer().with_ansi(false).with_writer(move || writer.clone());
        let log = registry().with(Escaping::new(text));
        tracing::subscriber::with_default(log, log_hostile);
        let text = String::from_utf8(written.0.lock().expect("whole").clone()).expect("text");
        let line = text.strip_suffix('\n').expect("a line");
        assert!(is_clean(line), "{text:?}");
        assert!(line.contains("said: x\\u{1b}[2J\\r\\n2026"), "{line}");
        assert!(line.contains("peer=\"beta\"") && line.contains("left_out=3 good=true"), "{line}");
    }

    #[test]
    fn a_hostile_name_is_one_line_of_text_in_each_field_of_the_journal() {
        let fields = Fields::default();
        let log = registry().with(Escaping::new(fields.clone()));
        tracing::subscriber::with_default(log, log_hostile);
        let fields = fields.0.lock().expect("whole");
        let names: Vec<&str> = fields.iter().map(|(name, _)| name.as_str()).collect();
        let all = ["message", "peer", "name", "fault", "debug", "left_out", "good"];
        assert!(all.iter().all(|name| names.contains(name)), "{names:?}");
        for (name, value) in fields.iter() {
            assert!(is_clean(value), "{name}: {value:?}");
            let is_foreign = ["message", "name", "fault", "debug"].contains(&name.as_str());
            assert_eq!(value.contains("\\u{202e}"), is_foreign, "{name}: {value}");
        }
    }
}
