use std::{
    net::{Ipv4Addr, SocketAddrV4},
    os::fd::OwnedFd,
};

use rustix::net::{
    AddressFamily, SocketFlags, SocketType, bind, getsockname, socket_with, sockopt,
};

/// A port of 127.0.0.1 that nobody else is given while this lives.
///
/// The socket is bound and never listens. So the kernel gives its port to nobody who asks for any, be it to listen or
/// to connect from, but a server may take it by its number. It stays ours while the server is down.
#[derive(Debug)]
pub struct Port {
    number: u16,
    _bound: OwnedFd,
}

impl Port {
    /// Any that is free.
    ///
    /// # Panics
    ///
    /// If there is none.
    pub fn reserve() -> Self {
        let (family, kind) = (AddressFamily::INET, SocketType::STREAM);
        let socket = socket_with(family, kind, SocketFlags::CLOEXEC, None).expect("a socket");
        sockopt::set_socket_reuseaddr(&socket, true).expect("an option of every socket");
        bind(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let address = getsockname(&socket).expect("a bound socket");
        let address = SocketAddrV4::try_from(address).expect("what it was bound to");
        Self { number: address.port(), _bound: socket }
    }

    /// Its number.
    pub fn number(&self) -> u16 {
        self.number
    }
}
