"""Operations that decide who may use the service: API tokens and sign-in sessions."""
