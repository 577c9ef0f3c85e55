"""Operations that decide who may use the service: tokens and sign-in sessions."""
