//! Kerberos by way of the C library: GSSAPI (RFC 2744) as a mechanism of SASL (RFC 4752). The library is opened when it is
//! needed, so zklock runs where it is not installed.
//!
//! The library reads tickets and keys where it is told to (krb5.conf(5), `KRB5CCNAME`, `KRB5_CLIENT_KTNAME`) and asks
//! key distribution centers, for as long as it takes. So a [`Client`] is for a process of its own, which ends after the
//! login: what the library has allocated goes with it.

#![expect(unsafe_code, reason = "the library is written in C")]

use std::ffi::{c_int, c_void};
use std::mem::ManuallyDrop;
use std::ptr::{null, null_mut};
use std::slice;

use serde::{Deserialize, Serialize};

use super::sasl::LoginTrouble;
use crate::rules::text::printable;

#[derive(Serialize, Deserialize)]
pub(super) struct Token {
    pub(super) bytes: Vec<u8>,
    /// The server has proved who it is. Its answer to this token is empty if it takes the login.
    pub(super) is_last: bool,
}

/// Our side of a login.
pub(super) struct Client {
    functions: Library,
    name: *mut c_void,
    context: *mut c_void,
    is_established: bool,
}

/// `gss_buffer_desc`
#[repr(C)]
struct Buffer {
    length: usize,
    value: *mut c_void,
}

/// `gss_OID_desc`
#[repr(C)]
struct Oid {
    length: u32,
    elements: *const u8,
}

/// 1.2.840.113554.1.2.1.4 (`GSS_C_NT_HOSTBASED_SERVICE`)
const HOST_BASED: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x12, 1, 2, 1, 4];
/// 1.2.840.113554.1.2.2.1 (`GSS_KRB5_NT_PRINCIPAL_NAME`)
const PRINCIPAL: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x12, 1, 2, 2, 1];
/// 1.2.840.113554.1.2.2, Kerberos (`gss_mech_krb5`)
const KERBEROS: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x12, 1, 2, 2];

/// `GSS_C_MUTUAL_FLAG`
const MUTUAL: u32 = 2;
/// `GSS_C_INTEG_FLAG`
const INTEGRITY: u32 = 32;
/// The part of a major status that tells of an error (`GSS_ERROR`).
const ERROR: u32 = 0xffff_0000;
/// `GSS_S_CONTINUE_NEEDED`
const CONTINUE: u32 = 1;
/// `GSS_C_GSS_CODE` and `GSS_C_MECH_CODE`
const OF_GSS: c_int = 1;
const OF_MECHANISM: c_int = 2;
/// `KRB5_KDC_UNREACH`, `KRB5_REALM_CANT_RESOLVE`, and what there is in place of these when no name server answers:
/// `KRB5_REALM_UNKNOWN` if that is to name the key distribution centers, `EAGAIN` if it is to find their addresses. So a realm
/// that does not exist is tried for as long as one that cannot be reached.
const UNREACHABLE: [u32; 4] = [
    (-1_765_328_228_i32).cast_unsigned(),
    (-1_765_328_164_i32).cast_unsigned(),
    (-1_765_328_230_i32).cast_unsigned(),
    libc::EAGAIN.cast_unsigned(),
];

/// In what a server offers and we choose: nothing is signed or encrypted after the login.
const NO_LAYER: u8 = 1;

/// The functions of the library that a login needs.
struct Library {
    import_name:
        unsafe extern "C" fn(minor: *mut u32, text: *const Buffer, kind: *const Oid, name: *mut *mut c_void) -> u32,
    init_sec_context: unsafe extern "C" fn(
        minor: *mut u32,
        credentials: *const c_void,
        context: *mut *mut c_void,
        name: *mut c_void,
        mechanism: *const Oid,
        flags: u32,
        time: u32,
        bindings: *const c_void,
        token: *const Buffer,
        actual_mechanism: *mut *mut Oid,
        answer: *mut Buffer,
        actual_flags: *mut u32,
        actual_time: *mut u32,
    ) -> u32,
    unwrap: unsafe extern "C" fn(
        minor: *mut u32,
        context: *mut c_void,
        wrapped: *const Buffer,
        plain: *mut Buffer,
        is_encrypted: *mut c_int,
        quality: *mut u32,
    ) -> u32,
    wrap: unsafe extern "C" fn(
        minor: *mut u32,
        context: *mut c_void,
        encrypt: c_int,
        quality: u32,
        plain: *const Buffer,
        is_encrypted: *mut c_int,
        wrapped: *mut Buffer,
    ) -> u32,
    display_status: unsafe extern "C" fn(
        minor: *mut u32,
        status: u32,
        kind: c_int,
        mechanism: *const Oid,
        more: *mut u32,
        text: *mut Buffer,
    ) -> u32,
}

impl Library {
    fn open() -> Result<Self, LoginTrouble> {
        // The library would bring its own C library.
        if cfg!(target_feature = "crt-static") {
            let why = "Kerberos needs a C library, and the static zklock cannot load any: use the zklock for glibc";
            return Err(LoginTrouble::NoLibrary(why.to_owned()));
        }
        let open = || -> anyhow::Result<Self> {
            // SAFETY: the fields have the types that RFC 2744 gives these functions, and nothing closes the library.
            unsafe {
                let library = ManuallyDrop::new(libloading::Library::new("libgssapi_krb5.so.2")?);
                Ok(Self {
                    import_name: *library.get("gss_import_name")?,
                    init_sec_context: *library.get("gss_init_sec_context")?,
                    unwrap: *library.get("gss_unwrap")?,
                    wrap: *library.get("gss_wrap")?,
                    display_status: *library.get("gss_display_status")?,
                })
            }
        };
        let why = "Kerberos needs the package libgssapi-krb5-2 (Debian) or krb5-libs (Fedora)";
        open().map_err(|error| LoginTrouble::NoLibrary(format!("{why}: {error:#}")))
    }

    /// Calls a function, which gets the places for its minor status and for the bytes that it writes. Returns its major
    /// status and these bytes.
    fn call(&self, function: impl FnOnce(*mut u32, *mut Buffer) -> u32) -> Result<(u32, Vec<u8>), LoginTrouble> {
        let (mut minor, mut written) = (0, given(&[]));
        let major = function(&raw mut minor, &raw mut written);
        if major & ERROR == 0 {
            return Ok((major, taken(&written)));
        }
        let why = match minor {
            0 => self.explain(major, OF_GSS),
            minor => self.explain(minor, OF_MECHANISM),
        };
        Err(if UNREACHABLE.contains(&minor) { LoginTrouble::Lost(of_kerberos(&why)) } else { refused(&why) })
    }

    fn explain(&self, status: u32, kind: c_int) -> String {
        let (mut minor, mut more, mut text) = (0, 0, given(&[]));
        // SAFETY: it reads the mechanism, which lives on, and writes to the others.
        let major = unsafe {
            (self.display_status)(&raw mut minor, status, kind, &oid(KERBEROS), &raw mut more, &raw mut text)
        };
        match taken(&text) {
            said if major & ERROR == 0 && !said.is_empty() => String::from_utf8_lossy(&said).into_owned(),
            _ => format!("error {status:#x}"),
        }
    }
}

fn of_kerberos(why: &str) -> String {
    format!("Kerberos: {}", printable(why))
}

fn refused(why: &str) -> LoginTrouble {
    LoginTrouble::Refused(of_kerberos(why))
}

impl Client {
    /// Will log in to a service on a host. A service with a slash, such as `zookeeper/zk.example.org@EXAMPLE.ORG`, is a
    /// principal, whatever the host is called.
    pub(super) fn new(service: &str, host: &str) -> Result<Self, LoginTrouble> {
        let functions = Library::open()?;
        let (text, kind) = match service.contains('/') {
            true => (service.to_owned(), PRINCIPAL),
            false => (format!("{service}@{host}"), HOST_BASED),
        };
        let mut name = null_mut();
        // SAFETY: it reads text and kind, which live on, and writes to the other two.
        functions.call(|minor, _| unsafe {
            (functions.import_name)(minor, &given(text.as_bytes()), &oid(kind), &raw mut name)
        })?;
        Ok(Self { functions, name, context: null_mut(), is_established: false })
    }

    /// The next token for the server. `token`: the last one that came from it, empty at the beginning.
    pub(super) fn step(&mut self, token: &[u8]) -> Result<Token, LoginTrouble> {
        let is_last = self.is_established;
        let bytes = if is_last { self.choose_layer(token) } else { self.establish(token) };
        bytes.map(|bytes| Token { bytes, is_last })
    }

    fn establish(&mut self, token: &[u8]) -> Result<Vec<u8>, LoginTrouble> {
        let mut flags = 0;
        // SAFETY: name and context are the library's, and it takes null for each of what is not given. It reads token
        // and mechanism, which live on, and writes to the others.
        let (major, answer) = self.functions.call(|minor, answer| unsafe {
            (self.functions.init_sec_context)(
                minor,
                null(),
                &raw mut self.context,
                self.name,
                &oid(KERBEROS),
                MUTUAL | INTEGRITY,
                0,
                null(),
                &given(token),
                null_mut(),
                answer,
                &raw mut flags,
                null_mut(),
            )
        })?;
        self.is_established = major & CONTINUE == 0;
        if self.is_established && flags & MUTUAL == 0 {
            return Err(refused("the server does not prove who it is"));
        }
        Ok(answer)
    }

    fn choose_layer(&self, token: &[u8]) -> Result<Vec<u8>, LoginTrouble> {
        // SAFETY: the context is established. It reads token, which lives on, and takes null for what is not asked for.
        let (_, plain) = self.functions.call(|minor, plain| unsafe {
            (self.functions.unwrap)(minor, self.context, &given(token), plain, null_mut(), null_mut())
        })?;
        if plain.first().is_none_or(|offered| offered & NO_LAYER == 0) {
            return Err(refused("the server wants to sign or to encrypt what follows"));
        }
        // With no other identity than that of the ticket.
        let choice = [NO_LAYER, 0, 0, 0];
        // SAFETY: as above.
        let (_, wrapped) = self.functions.call(|minor, wrapped| unsafe {
            (self.functions.wrap)(minor, self.context, 0, 0, &given(&choice), null_mut(), wrapped)
        })?;
        Ok(wrapped)
    }
}

/// Bytes for the library to read.
fn given(bytes: &[u8]) -> Buffer {
    Buffer { length: bytes.len(), value: bytes.as_ptr().cast_mut().cast() }
}

fn oid(bytes: &'static [u8]) -> Oid {
    Oid { length: u32::try_from(bytes.len()).unwrap_or(0), elements: bytes.as_ptr() }
}

/// Bytes that the library has written.
fn taken(buffer: &Buffer) -> Vec<u8> {
    if buffer.value.is_null() || buffer.length == 0 {
        return vec![];
    }
    // SAFETY: it has allocated that many bytes there, and nothing frees them.
    unsafe { slice::from_raw_parts(buffer.value.cast(), buffer.length) }.to_vec()
}
