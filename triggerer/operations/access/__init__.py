"""Operations that give and end access to the service: API tokens and sign-in sessions."""
