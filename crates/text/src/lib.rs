//! Text from others: which names are taken, and how foreign text is shown.
//!
//! Names of exports, regions and channels, paths below exports and reasons of refusals come from
//! clients, peers and file systems, and end on terminals and in logs. A terminal obeys control
//! characters; some characters that are not seen reorder or hide the text around them. So there is
//! one rule for the names that the daemon takes ([`is_name`], the same at both doors). Another one
//! is for everything that is shown ([`shown`]), wherever it came from.

#![forbid(unsafe_code)]

use std::borrow::Cow;
use std::fmt::Write as _;

/// Whether something may be called so: no byte of it is a control character.
///
/// It is a rule about bytes, because names of files are bytes. What only looks odd (an override of
/// the direction, say) may be in a name and is escaped when it is shown.
///
/// ```
/// assert!(piped_text::is_name("données/é.bin".as_bytes()));
/// assert!(piped_text::is_name(b"latin-1: \xe9"));
/// assert!(!piped_text::is_name(b"two\nlines"));
/// assert!(!piped_text::is_name(b"\x1b[2J") && !piped_text::is_name(b"a\x7f"));
/// ```
#[must_use]
pub const fn is_name(bytes: &[u8]) -> bool {
    let mut at = 0;
    while at < bytes.len() {
        if bytes[at].is_ascii_control() {
            return false;
        }
        at += 1;
    }
    true
}

/// Text for one line: whatever is not printable is escaped as in Rust, line ends among it.
///
/// ```
/// assert_eq!(piped_text::shown("plain 'text', \\ and é"), "plain 'text', \\ and é");
/// assert_eq!(piped_text::shown("a\u{1b}[2Jb\nc"), "a\\u{1b}[2Jb\\nc");
/// assert_eq!(piped_text::shown("fdp.\u{202e}exe"), "fdp.\\u{202e}exe");
/// ```
#[must_use]
pub fn shown(text: &str) -> Cow<'_, str> {
    escaped(text, is_printable)
}

/// Shows text that has lines as [`shown`] does, but line ends and tabs stay as they are.
///
/// ```
/// assert_eq!(piped_text::shown_lines("one\n\ttwo\u{9b}"), "one\n\ttwo\\u{9b}");
/// ```
#[must_use]
pub fn shown_lines(text: &str) -> Cow<'_, str> {
    escaped(text, |character| matches!(character, '\n' | '\t') || is_printable(character))
}

/// Shows bytes as [`shown`] does text; those that are no text are escaped as `\xNN`.
///
/// ```
/// assert_eq!(piped_text::shown_bytes(b"caf\xe9\n"), "caf\\xe9\\n");
/// ```
#[must_use]
pub fn shown_bytes(bytes: &[u8]) -> Cow<'_, str> {
    if let Ok(text) = std::str::from_utf8(bytes) {
        return shown(text);
    }
    let mut all = String::with_capacity(bytes.len() + 8);
    for chunk in bytes.utf8_chunks() {
        all.push_str(&shown(chunk.valid()));
        for byte in chunk.invalid() {
            let _ = write!(all, "\\x{byte:02x}");
        }
    }
    Cow::Owned(all)
}

/// JSON that says the same and has nothing in it that a terminal obeys: in JSON, what is not
/// printable stands in a string, and a string may name any character by its number.
///
/// ```
/// let shown = piped_text::shown_json("{\"a\":\"\u{9b}\u{202e}\"}\n");
/// assert_eq!(shown, "{\"a\":\"\\u009b\\u202e\"}\n");
/// ```
#[must_use]
pub fn shown_json(json: &str) -> Cow<'_, str> {
    let stays = |character| character == '\n' || is_printable(character);
    rewritten(json, stays, |character, all| {
        for unit in character.encode_utf16(&mut [0; 2]) {
            let _ = write!(all, "\\u{unit:04x}");
        }
    })
}

fn escaped(text: &str, stays: impl Fn(char) -> bool) -> Cow<'_, str> {
    rewritten(text, stays, |character, all| all.extend(character.escape_debug()))
}

fn rewritten(
    text: &str,
    stays: impl Fn(char) -> bool,
    replace: impl Fn(char, &mut String),
) -> Cow<'_, str> {
    let Some(first) = text.find(|character| !stays(character)) else { return Cow::Borrowed(text) };
    let mut all = String::with_capacity(text.len() + 16);
    all.push_str(&text[..first]);
    for character in text[first..].chars() {
        if stays(character) { all.push(character) } else { replace(character, &mut all) }
    }
    Cow::Owned(all)
}

/// The standard library says what is printable: it escapes the rest in `Debug` of text. Quotes and
/// the backslash, which it escapes as well, are printable; so are marks that combine with the
/// character before them, if there is one.
fn is_printable(character: char) -> bool {
    if character.is_ascii() {
        return !character.is_ascii_control();
    }
    let mut after_another = [b'a', 0, 0, 0, 0];
    let length = 1 + character.encode_utf8(&mut after_another[1..]).len();
    let text = std::str::from_utf8(&after_another[..length]);
    text.is_ok_and(|text| text.escape_debug().count() == 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Characters that would move a cursor, end a line, or reorder or hide what stands beside them.
    fn hostile() -> impl Iterator<Item = char> {
        let controls = ('\0'..=' ').chain('\u{7f}'..='\u{9f}').filter(|it| *it != ' ');
        let directions = ('\u{200b}'..='\u{200f}').chain('\u{202a}'..='\u{202e}');
        let isolates = ('\u{2060}'..='\u{2064}').chain('\u{2066}'..='\u{206f}');
        let others =
            ['\u{ad}', '\u{61c}', '\u{2028}', '\u{2029}', '\u{feff}', '\u{fff9}', '\u{e0041}'];
        controls.chain(directions).chain(isolates).chain(others)
    }

    #[test]
    fn nothing_hostile_is_shown_as_it_is_anywhere() {
        for character in hostile() {
            let text = format!("a{character}b");
            let told = [shown(&text), shown_bytes(text.as_bytes()), shown_json(&text)];
            for (way, told) in told.iter().enumerate() {
                let stays = way == 2 && character == '\n';
                assert_eq!(told.contains(character), stays, "{character:?} by {way}: {told}");
                assert!(told.starts_with('a') && told.ends_with('b'), "{told}");
            }
            let is_layout = matches!(character, '\n' | '\t');
            assert_eq!(shown_lines(&text).contains(character), is_layout, "{character:?}");
        }
    }

    #[test]
    fn what_is_printable_stays_and_costs_no_copy() {
        for text in
            ["", "it's \"so\" \\ \\n", "Größe ≥ 5 µs · ½", "e\u{301}", "名前 🙂\u{fe0f}", "± → │█"]
        {
            assert!(matches!(shown(text), Cow::Borrowed(same) if same == text), "{text}");
            assert!(matches!(shown_json(text), Cow::Borrowed(_)), "{text}");
            assert!(matches!(shown_bytes(text.as_bytes()), Cow::Borrowed(_)), "{text}");
        }
    }

    #[test]
    fn json_stays_the_same_to_programs() {
        for character in hostile() {
            let number: String = character
                .encode_utf16(&mut [0; 2])
                .iter()
                .map(|unit| format!("\\u{unit:04x}"))
                .collect();
            let told = shown_json("[\"x\"]").replace('x', &character.to_string());
            let expected = if character == '\n' { "\n".to_owned() } else { number };
            assert_eq!(shown_json(&told), format!("[\"{expected}\"]"));
        }
    }

    #[test]
    fn names_have_no_control_bytes_and_may_be_no_text() {
        for byte in 0..=u8::MAX {
            let is_control = byte < 0x20 || byte == 0x7f;
            assert_eq!(is_name(&[b'a', byte]), !is_control, "{byte:#x}");
        }
        assert!(is_name("\u{202e}".as_bytes()), "only its showing is escaped");
    }
}
